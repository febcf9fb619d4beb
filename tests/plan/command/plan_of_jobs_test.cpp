// `shoal plan` of job and configuration files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shoal/schedule/generators.h"
#include "shoal/schedule/schedule_file.h"
#include "tests/plan/command/plan_program.h"

namespace shoal::apps::plan_of_jobs_test {
namespace {

using plan_program::Folder;
using plan_program::json_of;
using plan_program::Outcome;
using plan_program::run;
using testing::HasSubstr;
using testing::Not;

TEST(PlanCommand, PrintsTheRecipeOfAJob) {
  const Folder folder;
  const std::string job =
      folder.write("job.toml",
                   "[model]\nname = \"gpt2-tiny\"\n[training]\nglobal_batch_sequences = 4\n"
                   "sequence_length = 64\nsteps = 1\n[data]\nfolders = [\"none\"]\n"
                   "[parallelism]\nranks = 4\ntensor_parallel_degree = 2\n"
                   "layouts = [\"blocks.1.mlp.*: weight replicate\"]\n");
  const Outcome shown = run("plan --recipe " + job);
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_THAT(shown.text, HasSubstr("# gpt2-tiny on 2 tensor-parallel ranks\n[parallelism]\n"
                                    "tensor_parallel_degree = 2\nlayouts = [\n"));
  EXPECT_THAT(shown.text, HasSubstr("\"blocks.*.attention.out: weight shard(1), bias replicate, "
                                    "output stream\","));
  EXPECT_THAT(shown.text, HasSubstr("\"blocks.1.mlp.up: weight replicate, bias replicate, output "
                                    "stream\","));
  // What it prints is a job file's key, and gives the same.
  const std::string again = folder.write("again.toml", [&] {
    std::string text = "[model]\nname = \"gpt2-tiny\"\n" + shown.text;
    return text;
  }());
  EXPECT_EQ(run("plan --recipe " + again).text, shown.text);
  EXPECT_THAT(run("plan --recipe " + job + " --tp 3").text,
              HasSubstr("blocks.0.attention.qkv: tp = 3: must divide heads = 4"));
  EXPECT_THAT(
      run("plan --recipe " + job + " --set 'parallelism.layouts=[\"*.mlp.up: weigth\"]'").text,
      HasSubstr("column 11: 'weigth'"));
  EXPECT_THAT(run("plan --recipe " + job + " --tp 1").text, HasSubstr("one rank divides nothing"));
  EXPECT_THAT(run("plan --recipe " + job + " --dp 2").text,
              HasSubstr("--dp: means nothing beside --recipe"));
}

TEST(PlanCommand, ReadsConfigAndJobFiles) {
  const Folder folder;
  const std::string config = folder.write(
      "config.json", R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": false})");
  EXPECT_EQ(
      json_of("plan --model " + config + " --devices 64 --cluster h100 --zero 3").at("parameters"),
      8030261248);
  const std::string job = folder.write(
      "job.toml",
      "[model]\nname = \"gpt2-124m\"\n[training]\nglobal_batch_sequences = 8\nsteps = 10\n");
  const Outcome planned = run("plan --json --model " + job);
  EXPECT_EQ(planned.code, 0) << planned.text;
}

// A vocabulary of 64 rows, the least that is allowed, would hide most of a small model.
TEST(PlanCommand, AssumesTheVocabularyOfDataThatIsNotPrepared) {
  const Folder folder;
  const std::string job = folder.write(
      "job.toml",
      "[model]\nname = \"llama-tiny\"\nvocab = 0\n[training]\nglobal_batch_sequences = 8\nsteps "
      "= 10\n[data]\nfolders = [\"none\"]\nprepare = \"files\"\nprepare_from = "
      "[\"none\"]\n");
  const std::string words = "plan --model " + job;
  const auto parameters = [&](const std::string& more) {
    return json_of(words + more).at("parameters").get<std::int64_t>();
  };
  EXPECT_EQ(parameters(""), parameters(" --set model.vocab=4096"));
  EXPECT_EQ(parameters(" --set data.vocab_size=1000"), parameters(" --set model.vocab=1024"));
  const char* said =
      "job.toml is not prepared yet: the plan assumes a tokenizer of 4096 entries "
      "(data.vocab_size); "
      "--set model.vocab=N sets another number";
  EXPECT_THAT(run(words).text, HasSubstr(said));
  EXPECT_THAT(json_of(words).at("assumption").get<std::string>(), HasSubstr(said));
  EXPECT_THAT(run(words + " --search").text, HasSubstr(said));
  EXPECT_THAT(json_of(words + " --search").at("assumption").get<std::string>(), HasSubstr(said));
  EXPECT_THAT(run("plan inference --model " + job).text, HasSubstr(said));
  EXPECT_TRUE(json_of("plan inference --model " + job).contains("assumption"));
  // Where it is known, nothing is assumed: 256 bytes, the end of a document, a multiple of 64.
  const std::string byte = " --set data.tokenizer=byte";
  EXPECT_EQ(parameters(byte), parameters(" --set model.vocab=320"));
  for (const std::string& known : {byte, std::string(" --set model.vocab=4096")}) {
    EXPECT_FALSE(json_of(words + known).contains("assumption"));
    EXPECT_THAT(run(words + known).text, Not(HasSubstr("assumes")));
  }
  // The same for data that the job does not prepare itself.
  EXPECT_THAT(run(words + " --set data.prepare=nothing --set data.prepare_from=[]").text,
              HasSubstr("the plan assumes a tokenizer of 4096 entries"));
}

TEST(PlanCommand, KnowsTheSizesOfATable) {
  const Folder folder;
  const std::string table = folder.write(
      "three.csv", "a,b,c\n0,1,2\n1,0,1\n1,2,0\n2,2,1\n0,0,2\n1,1,0\n2,0,1\n0,2,0\n2,1,2\n1,2,1\n");
  const std::string job = folder.write(
      "job.toml", "[model]\nfamily = \"mlp\"\nwidths = [16]\n[data]\nsource = \"csv\"\nfile = \"" +
                      table + "\"\n[training]\nglobal_batch_sequences = 2\nsteps = 10\n");
  const std::string words = "plan --model " + job;
  // Two features, and classes 0, 1 and 2.
  EXPECT_EQ(json_of(words).at("parameters"), 2 * 16 + 16 + 16 * 3 + 3);
  EXPECT_EQ(json_of(words + " --set data.source=digits --set data.file=").at("parameters"),
            64 * 16 + 16 + 16 * 10 + 10);
}

// A job's pipeline is planned as it will run, and an option takes its place.
TEST(PlanCommand, APipelineIsThatOfTheJob) {
  const Folder folder;
  const std::string job =
      folder.write("job.toml",
                   "[model]\nname = \"gpt2-124m\"\n[training]\nglobal_batch_sequences = 8\n"
                   "micro_batch = 1\nsteps = 10\n[parallelism]\npipeline_parallel_degree = 2\n"
                   "pipeline_parallel_schedule = \"gpipe\"\n");
  const std::string words = "plan --json --cluster cpu --devices 2 --model " + job;
  const auto peak = [](const nlohmann::json& plan) { return plan.at("peak_bytes").get<double>(); };
  const auto gpipe = json_of(words);
  EXPECT_EQ(gpipe.at("mesh").at("pp"), 2);
  const auto other = json_of(words + " --schedule 1f1b");
  EXPECT_GT(peak(gpipe), 1.5 * peak(other)) << "eight micro-batches in flight, not two";
  const std::string search = "plan --search --cluster cpu --count 1 --devices 4 --model " + job;
  EXPECT_EQ(json_of(search).at("best").size(), 1u);
  EXPECT_EQ(json_of(search + " --set parallelism.context_parallel_degree=2").at("best").size(), 1u);
  // What would be planned otherwise than it runs is refused.
  const auto refused = [&](const std::string& more) { return run("plan --model " + job + more); };
  EXPECT_THAT(refused(" --gathers --devices 4").text, HasSubstr("whole stages are gathered"));
}

// Layouts of a job are planned: more states where matrices are whole, and nothing sent for them.
TEST(PlanCommand, LayoutsOfAJobArePlanned) {
  const Folder folder;
  const std::string job = folder.write(
      "job.toml",
      "[model]\nname = \"gpt2-124m\"\n[training]\nglobal_batch_sequences = 2\nsteps = 10\n"
      "[parallelism]\ntensor_parallel_degree = 2\n");
  const std::string words = "plan --cluster cpu --devices 2 --model " + job;
  const std::string whole = " --set 'parallelism.layouts=[\"*.mlp.*: weight replicate\"]'";
  const auto tensor_bytes = [](const nlohmann::json& plan) {
    return plan.at("traffic_bytes").at("tensor").get<double>();
  };
  const auto usual = json_of(words + " --json");
  const auto planned = json_of(words + " --json" + whole);
  EXPECT_DOUBLE_EQ(tensor_bytes(planned), tensor_bytes(usual) / 2);
  // Half of twelve matrices of 768 x 3072, up and down: 16 bytes of states each.
  EXPECT_GT(planned.at("peak_bytes").get<double>() - usual.at("peak_bytes").get<double>(),
            0.7 * 16 * 12 * 768 * 3072);
  EXPECT_THAT(run(words + whole).text,
              HasSubstr("they divide all blocks as the default recipe does"));
  EXPECT_THAT(run(words + whole + " --search").text, HasSubstr("layouts are of one"));
  EXPECT_THAT(run("plan --cluster a100 --devices 2 --model " + job + whole).text,
              HasSubstr("Shoal alone divides by recipes"));
  // One rank divides nothing; three do not divide the heads of a recipe that cuts them.
  EXPECT_THAT(run("plan --cluster cpu --devices 5 --tp 5 --model " + job + whole).text,
              HasSubstr("must divide heads = 12"));
}

// The table of a job's file is planned as the schedule that it is a copy of, and simulated. So is
// that of --schedule-file, which takes the place of the job's.
TEST(PlanCommand, AScheduleFileOfAJobIsPlanned) {
  const Folder folder;
  const std::string job =
      folder.write("job.toml",
                   "[model]\nname = \"gpt2-124m\"\n[training]\nglobal_batch_sequences = 8\n"
                   "micro_batch = 1\nsteps = 10\n[parallelism]\npipeline_parallel_degree = 2\n");
  const std::string words = "plan --json --cluster cpu --devices 2 --model " + job;
  for (const char* name : {"in_turn", "gpipe", "1f1b", "zb-v"}) {
    const int chunks = std::string(name) == "zb-v" ? 2 : 1;
    const bool is_exact = chunks == 2 || std::string(name) == "in_turn";
    const std::string file =
        folder.write("table.csv", schedule::to_csv(schedule::make_schedule(name, 2, chunks, 8)));
    const std::string csv = " --set parallelism.pipeline_parallel_schedule_csv=" + file;
    const auto of_file = json_of(words + csv);
    const auto named = json_of(words + " --set parallelism.pipeline_parallel_schedule=" + name);
    EXPECT_EQ(of_file.at("schedule"), file);
    EXPECT_EQ(of_file.at("simulated").at("schedule"), file);
    EXPECT_EQ(json_of(words + " --schedule-file " + file), of_file) << name;
    EXPECT_EQ(of_file.at("peak_bytes"), named.at("peak_bytes")) << name;
    // Of stages that differ a little the closed forms of gpipe and 1f1b are estimates.
    const double seconds = named.at("step_time_s").get<double>();
    EXPECT_NEAR(of_file.at("step_time_s").get<double>(), seconds, (is_exact ? 1e-9 : 0.1) * seconds)
        << name;
    EXPECT_EQ(json_of(words + csv + " --schedule gpipe").at("schedule"), "gpipe");
    const std::string search = "plan --search --cluster cpu --count 1 --devices 4 --model ";
    EXPECT_EQ(json_of(search + job + csv).at("best").size(), 1U);
  }
  const Outcome refused = run(
      "plan --cluster cpu --devices 4 --model " + job +
      " --set parallelism.pipeline_parallel_schedule_csv=" + (folder.path / "table.csv").string());
  EXPECT_THAT(refused.text, HasSubstr("is of 8 micro-batches, and a step of this job has 4"));
}

}  // namespace
}  // namespace shoal::apps::plan_of_jobs_test
