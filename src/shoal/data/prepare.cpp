#include "shoal/data/prepare.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <system_error>

#include "shoal/base/check.h"
#include "shoal/base/for_each_index.h"
#include "shoal/base/philox.h"
#include "shoal/data/bpe.h"
#include "shoal/data/corpus.h"
#include "shoal/data/duplicates.h"
#include "shoal/data/file.h"
#include "shoal/data/shard.h"
#include "shoal/data/tokenizer.h"

namespace shoal::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInputsFile =
    ".inputs";  // the options and the sizes and times of the inputs of the finished dataset
constexpr const char* kProgressFile =
    ".progress";                                // the fingerprint of a dataset that is being made
constexpr std::uint64_t kBatchBytes = 8 << 20;  // of text between two reports

/// The work of one call of prepare().
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const Progress& progress)
      : options_(options), progress_(progress) {}

  PrepareResult run() {
    check_options();
    make_folder();
    // Several jobs, or the ranks of another launcher, may prepare one folder at once: one works,
    // the others wait and find the work done.
    const FileLock lock(path(".lock"), options_.patience);
    find_inputs();
    // Names, sizes and times first, which reads nothing; then contents, which decide.
    if (auto done = finished_before()) return {std::move(*done), true, 0, {}};
    Split split = read_corpus();
    if (auto done = reject_or_take_over()) return {std::move(*done), true, 0, binary_};
    start_or_continue();
    make_tokenizer(split.train);
    write_split("train", split.train);
    write_split("validation", split.validation);
    finish();
    return {manifest_, false, reused_, binary_};
  }

 private:
  std::string path(const std::string& file) const { return options_.out + "/" + file; }
  void report(const std::string& stage, std::uint64_t done, std::uint64_t total) const {
    if (progress_) progress_(stage, done, total);
  }

  void check_options() const;
  void make_folder() const;
  void find_inputs();
  std::optional<Manifest> finished_before() const;
  Split read_corpus();
  std::optional<Manifest> reject_or_take_over() const;
  void start_or_continue() const;
  void make_tokenizer(const std::vector<Document>& documents);
  void write_split(const std::string& name, const std::vector<Document>& documents);
  void write_shard(const std::string& name, SplitEntry& split, ShardWriter& writer);
  std::size_t reuse_shards(const std::string& name, SplitEntry& split,
                           const std::vector<Document>& documents);
  void finish();

  bool shards_exist(const Manifest& manifest) const;
  std::uint64_t bytes_of(const std::vector<std::uint32_t>& tokens) const {
    std::uint64_t bytes = 0;
    for (const std::uint32_t id : tokens) bytes += tokenizer_->bytes_of(id).size();
    return bytes;
  }
  std::string shard_file(const std::string& split, std::size_t index) const {
    return fmt::format("{}-{:05}.tokens", split, index);
  }

  const PrepareOptions& options_;
  const Progress& progress_;
  std::vector<PinnedFile> pinned_;
  std::vector<InputFile> inputs_;
  std::string inputs_seen_;  // the content of kInputsFile
  Manifest manifest_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::uint64_t reused_ = 0;
  std::vector<BinaryFile> binary_;
};

// These texts decide the bytes of the data set, so they are part of the fingerprint. Threads and
// places are not.
std::map<std::string, std::string> describe(const PrepareOptions& o) {
  std::map<std::string, std::string> text = {
      {"corpus", o.headers.empty() ? "files" : "headers"},
      {"tokenizer", o.tokenizer == TokenizerKind::kBpe ? "bpe" : "byte"},
      {"validation_fraction", fmt::format("{}", o.validation_fraction)},
      {"drop_duplicates", o.drop_duplicates ? "true" : "false"},
      {"shard_tokens", fmt::to_string(o.shard_tokens)},
      {"seed", fmt::to_string(o.seed)},
  };
  if (o.tokenizer == TokenizerKind::kGiven)
    text["tokenizer"] = fmt::format("{} {:08x}", o.given->name(), o.given->checksum());
  if (o.tokenizer == TokenizerKind::kBpe) {
    text["vocab_size"] = fmt::to_string(o.vocab_size);
    text["tokenizer_bytes"] = fmt::to_string(o.tokenizer_bytes);
  }
  if (!o.headers.empty()) text["packaging_guard"] = "cut";
  // Only where it is on, so that older datasets keep their fingerprint.
  if (o.keep_binary && o.headers.empty()) text["binary_files"] = "kept";
  return text;
}

/// A dataset inside a folder that is its own input is not part of that input.
std::vector<InputFile> input_files(const PrepareOptions& options) {
  auto files = find_files(options.inputs, options.suffixes);
  const std::string own = fs::canonical(options.out).string() + "/";
  std::erase_if(files, [&](const InputFile& file) {
    return fs::path(file.path).is_absolute() && file.path.starts_with(own);
  });
  return files;
}

void Preparation::check_options() const {
  constexpr const char* kWhere = "data prepare";
  SHOAL_USER_CHECK(!options_.out.empty(), kWhere, "no folder was named for the dataset");
  SHOAL_USER_CHECK(options_.inputs.empty() != options_.headers.empty(), kWhere,
                   "name either inputs or the header corpus");
  SHOAL_USER_CHECK(options_.validation_fraction >= 0 && options_.validation_fraction < 1, kWhere,
                   "a validation fraction of {}; allowed is 0 to less than 1",
                   options_.validation_fraction);
  SHOAL_USER_CHECK((options_.tokenizer == TokenizerKind::kGiven) == (options_.given != nullptr),
                   kWhere, "a tokenizer is given where none is wanted, or none where one is");
  SHOAL_USER_CHECK(options_.tokenizer != TokenizerKind::kBpe ||
                       (options_.vocab_size >= 258 && options_.vocab_size <= 1'000'000),
                   kWhere, "a vocabulary of {} entries; allowed are 258 to 1000000",
                   options_.vocab_size);
  SHOAL_USER_CHECK(options_.shard_tokens >= 1, kWhere, "shards of {} tokens",
                   options_.shard_tokens);
  SHOAL_USER_CHECK(options_.tokenizer_bytes >= 1, kWhere, "a tokenizer that sees {} bytes",
                   options_.tokenizer_bytes);
  SHOAL_USER_CHECK(options_.threads >= 1, kWhere, "{} threads", options_.threads);
}

void Preparation::make_folder() const {
  std::error_code error;
  fs::create_directories(options_.out, error);
  if (error) {
    throw Error(ErrorKind::kOutput, "data prepare",
                fmt::format("cannot make the folder {}: {}", options_.out, error.message()));
  }
}

void Preparation::find_inputs() {
  if (options_.headers.empty()) {
    inputs_ = input_files(options_);
  } else {
    pinned_ = parse_pinned_list(pinned_header_list());
    inputs_ = find_pinned(options_.headers, pinned_);
  }
  manifest_.options = describe(options_);
  for (const auto& [key, value] : manifest_.options)
    inputs_seen_ += fmt::format("{}={}\n", key, value);
  for (const InputFile& file : inputs_) {
    inputs_seen_ += fmt::format("{} {} {} {}\n", file.bytes, file.modified_ns, file.name,
                                fs::absolute(file.path).string());
  }
}

bool Preparation::shards_exist(const Manifest& manifest) const {
  for (const auto& [name, split] : manifest.splits) {
    for (const ShardEntry& shard : split.shards)
      if (!fs::exists(path(shard.file))) return false;
  }
  return fs::exists(path(kTokenizerFile));
}

std::optional<Manifest> Preparation::finished_before() const {
  if (!fs::exists(path(kManifestFile)) || !fs::exists(path(kInputsFile)) ||
      read_file(path(kInputsFile)) != inputs_seen_)
    return {};
  Manifest manifest = read_manifest(options_.out);
  if (!shards_exist(manifest)) return {};
  return manifest;
}

Split Preparation::read_corpus() {
  report("reading files", 0, inputs_.size());
  auto documents = read_documents(inputs_, options_.threads);
  if (!pinned_.empty()) {
    check_pinned(documents, pinned_);
    for (Document& document : documents)
      document.text = std::string(without_packaging_guard(document.text));
  }
  std::string identity;
  for (const auto& [key, value] : manifest_.options) identity += fmt::format("{}={}\n", key, value);
  for (const Document& document : documents) {
    identity +=
        fmt::format("{:08x} {} {}\n", crc32(document.text), document.text.size(), document.name);
    manifest_.source.bytes += document.text.size();
  }
  manifest_.source.files = documents.size();
  if (pinned_.empty() && !options_.keep_binary) {
    binary_ = remove_binary_files(documents);
    manifest_.source.binary_files = binary_.size();
    for (const BinaryFile& file : binary_) {
      manifest_.source.binary_bytes += file.bytes;
      identity += fmt::format("left out: {}\n", file.name);
    }
  }
  // It is made of options, names, sizes and contents, not of times or places.
  manifest_.fingerprint = Key(1).child(identity).value();
  report("reading files", inputs_.size(), inputs_.size());
  // Whole files first: a passage that stood only in a removed twin must not count as seen.
  if (options_.drop_duplicates) {
    report("removing duplicates", 0, documents.size());
    const Removed files = remove_near_duplicates(documents, options_.threads);
    const Removed passages = remove_repeated_passages(documents);
    manifest_.source.near_duplicate_files = files.count;
    manifest_.source.near_duplicate_bytes = files.bytes;
    manifest_.source.repeated_passages = passages.count;
    manifest_.source.repeated_passage_bytes = passages.bytes;
    report("removing duplicates", manifest_.source.files, manifest_.source.files);
  }
  manifest_.source.empty_files =
      std::erase_if(documents, [](const Document& document) { return document.text.empty(); });
  if (documents.empty()) {
    throw Error(ErrorKind::kData, "data prepare",
                fmt::format("the corpus is empty: {} files hold no text", manifest_.source.files))
        .hint(binary_.empty() ? ""
                              : fmt::format("{} of them look binary (the first is {}: {}); "
                                            "`shoal data prepare --binary` takes them",
                                            binary_.size(), binary_[0].name, binary_[0].reason));
  }
  return split_documents(std::move(documents), options_.validation_fraction, options_.seed);
}

std::optional<Manifest> Preparation::reject_or_take_over() const {
  if (!fs::exists(path(kManifestFile))) return {};
  Manifest there = read_manifest(options_.out);
  if (there.fingerprint != manifest_.fingerprint) {
    // A folder is never overwritten with another data set: a run may depend on it.
    std::string differences;
    for (const auto& [key, value] : manifest_.options) {
      if (there.options[key] != value) {
        differences += fmt::format("{}{} is {}, not {}", differences.empty() ? "" : "; ", key,
                                   there.options[key], value);
      }
    }
    throw Error(ErrorKind::kUsage, "data prepare",
                fmt::format("{} holds another dataset: {}", options_.out,
                            differences.empty() ? "its input files were other ones" : differences))
        .hint("choose another --out, or delete that folder");
  }
  if (!shards_exist(there)) return {};
  // The same data set, found by its content although file times or places changed: note the new
  // ones, so that the next run need not read.
  write_file(path(kInputsFile), inputs_seen_);
  return there;
}

void Preparation::start_or_continue() const {
  const std::string mark = fmt::format("{:016x}\n", manifest_.fingerprint);
  if (fs::exists(path(kProgressFile)) && read_file(path(kProgressFile)) == mark) return;
  if (fs::exists(path(kManifestFile))) {  // a finished dataset of the same inputs that lost files:
                                          // its other files stay
    write_file(path(kProgressFile), mark);
    return;
  }
  std::error_code error;
  // Removed before the mark is written, which vouches for it from then on: this file has no
  // fingerprint of its own. Shards have one and may stay.
  fs::remove(path(kTokenizerFile), error);  // of an interrupted run with other inputs
  write_file(path(kProgressFile), mark);
}

void Preparation::make_tokenizer(const std::vector<Document>& documents) {
  if (options_.tokenizer == TokenizerKind::kBytes) {
    tokenizer_ = byte_tokenizer();
  } else if (options_.given) {
    tokenizer_ = options_.given;
  } else if (fs::exists(path(kTokenizerFile))) {
    // It is of an interrupted run with the same inputs, as start_or_continue made sure.
    tokenizer_ = load_tokenizer(path(kTokenizerFile));
  } else {
    report("training the tokenizer", 0, 1);
    std::uint64_t total = 0;
    for (const Document& document : documents) total += document.text.size();
    // A share of every document, in whole documents by a hash of the name, when there is more text
    // than is wanted.
    const double share = static_cast<double>(options_.tokenizer_bytes) /
                         static_cast<double>(std::max<std::uint64_t>(total, 1));
    const Key key = Key(options_.seed).child("tokenizer sample");
    // Counts of all parts add up to the same map for any number of threads.
    std::vector<PretokenCounts> counts(options_.threads);
    for_each_index(counts.size(), options_.threads, [&](std::size_t part) {
      for (std::size_t i = part; i < documents.size(); i += counts.size()) {
        if (share >= 1 || documents.size() == 1 || key.child(documents[i].name).uniform(0) < share)
          count_pretokens(documents[i].text, counts[part]);
      }
    });
    for (std::size_t part = 1; part < counts.size(); ++part)
      for (const auto& [word, count] : counts[part]) counts[0][word] += count;
    tokenizer_ = train_bpe(counts[0], options_.vocab_size);
    report("training the tokenizer", 1, 1);
  }
  tokenizer_->save(path(kTokenizerFile));
  manifest_.tokenizer_name = tokenizer_->name();
  manifest_.vocab_size = tokenizer_->vocab_size();
  manifest_.tokenizer_crc32 = tokenizer_->checksum();
}

/// Takes the shards of an interrupted run, from the first on, as far as they are whole. Returns how
/// many documents they hold.
std::size_t Preparation::reuse_shards(const std::string& name, SplitEntry& split,
                                      const std::vector<Document>& documents) {
  std::size_t taken = 0;
  for (std::string file; taken < documents.size() &&
                         fs::exists(path(file = shard_file(name, split.shards.size())));) {
    try {
      // Checksum and fingerprint tell whether a shard is whole and ours; the first that is not, and
      // all behind it, are made again.
      const TokenShard shard(path(file), true);
      const ShardHeader& header = shard.header();
      const bool ours = header.fingerprint == manifest_.fingerprint &&
                        header.tokenizer_crc32 == manifest_.tokenizer_crc32 &&
                        header.documents <= documents.size() - taken;
      if (!ours) break;
      taken += header.documents;
      split.shards.push_back(
          {file, header.tokens, header.documents, header.text_bytes, header.body_crc32});
      ++reused_;
    } catch (const Error&) {
      break;  // damaged: made again
    }
  }
  return taken;
}

void Preparation::write_shard(const std::string& name, SplitEntry& split, ShardWriter& writer) {
  const std::string file = shard_file(name, split.shards.size());
  // Ids are below the size, so 65,536 entries fit into 16 bits.
  const std::uint32_t token_bytes = tokenizer_->vocab_size() <= 65536 ? 2 : 4;
  const ShardHeader header =
      writer.write(path(file), token_bytes, manifest_.fingerprint, manifest_.tokenizer_crc32);
  split.shards.push_back(
      {file, header.tokens, header.documents, header.text_bytes, header.body_crc32});
}

void Preparation::write_split(const std::string& name, const std::vector<Document>& documents) {
  SplitEntry split;
  std::size_t next = reuse_shards(name, split, documents);
  std::uint64_t total = 0;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    total += documents[i].text.size();
    if (i < next) done += documents[i].text.size();
    split.files.push_back(documents[i].name);
  }
  ShardWriter writer;
  while (next < documents.size()) {
    report("tokenizing " + name, done, total);
    // A batch of documents is tokenized by all threads, then appended in order.
    std::size_t end = next;
    for (std::uint64_t bytes = 0; end < documents.size() && bytes < kBatchBytes; ++end)
      bytes += documents[end].text.size();
    std::vector<std::vector<std::uint32_t>> tokens(end - next);
    for_each_index(tokens.size(), options_.threads, [&](std::size_t i) {
      tokens[i] = tokenizer_->prefix();
      tokenizer_->encode(documents[next + i].text, tokens[i]);
      tokens[i].push_back(tokenizer_->end_of_document());
    });
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      // Bytes are of the tokens, not of the text: a tokenizer may normalize that.
      writer.add(tokens[i], bytes_of(tokens[i]));
      done += documents[next + i].text.size();
      // Shards end after whole documents in order, so their borders do not depend on batches or
      // threads, and an interrupted run can go on behind the last whole one.
      if (writer.tokens() >= options_.shard_tokens) write_shard(name, split, writer);
    }
    next = end;
  }
  if (!writer.empty()) write_shard(name, split, writer);
  if (!documents.empty()) report("tokenizing " + name, total, total);
  for (const ShardEntry& shard : split.shards) {
    split.tokens += shard.tokens;
    split.documents += shard.documents;
    split.bytes += shard.bytes;
  }
  manifest_.splits[name] = std::move(split);
}

void Preparation::finish() {
  // The manifest makes the data set valid, and everything it names is on the disk by now. Whatever
  // follows may be lost in a crash and is made up for by the next run.
  write_file(path(kManifestFile), to_json(manifest_));
  write_file(path(kInputsFile), inputs_seen_);
  std::error_code error;
  // Shards of an interrupted run with other options that had more of them.
  for (const auto& [name, split] : manifest_.splits) {
    for (std::size_t i = split.shards.size(); fs::remove(path(shard_file(name, i)), error); ++i) {
    }
  }
  fs::remove(path(kProgressFile), error);
}

}  // namespace

std::map<std::string, std::string> prepared_otherwise(const PrepareOptions& options) {
  const Manifest there = read_manifest(options.out);
  std::map<std::string, std::string> others;
  for (const auto& [option, wanted] : describe(
           options)) {  // of an option that one kind of tokenizer alone has, the kind says enough
    if (const auto found = there.options.find(option);
        found != there.options.end() && found->second != wanted)
      others[option] = found->second;
  }
  if (options.inputs.empty()) return others;
  std::set<std::string> names;
  std::uint64_t bytes = 0;
  for (const InputFile& file : input_files(options)) names.insert(file.name), bytes += file.bytes;
  bool same = names.size() == there.source.files && bytes == there.source.bytes;
  // A manifest has U+FFFD in the place of bytes that are not UTF-8.
  const auto known = [&](const std::string& name) {
    return names.contains(name) || name.find("\xef\xbf\xbd") != std::string::npos;
  };
  for (const auto& [split, entry] : there.splits)
    same = same && std::all_of(entry.files.begin(), entry.files.end(), known);
  if (!same) {
    others["inputs"] = fmt::format("{} files of {} bytes, now {} of {} or of other names",
                                   there.source.files, there.source.bytes, names.size(), bytes);
  }
  return others;
}

PrepareResult prepare(const PrepareOptions& options, const Progress& progress) {
  return Preparation(options, progress).run();
}

}  // namespace shoal::data
