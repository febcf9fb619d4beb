#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/base/log.h"
#include "shoal/checkpoint/format/reader.h"
#include "shoal/train/config/lineage.h"
#include "shoal/train/config/metrics.h"
#include "shoal/train/elastic/replay.h"
#include "shoal/train/trainer.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train {

/// Members of an elastic job as threads.
class ElasticJob : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    prepare_small_text(path("data"));
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  /// Returns the bytes by name of the model in a checkpoint.
  std::map<std::string, std::vector<char>> model_of(const std::string& name, int step) const {
    checkpoint::format::Reader reader(path(name) + "/checkpoints/step-" + std::to_string(step));
    std::map<std::string, std::vector<char>> values;
    for (const auto& tensor : reader.manifest().tensors)
      if (tensor.name.starts_with("model.")) values[tensor.name] = reader.read(tensor);
    return values;
  }

  /// Trains in the folder `name`, and returns the exit code.
  int train_in(const std::string& name, const Sets& sets, std::atomic<int>* stop = nullptr) const {
    std::filesystem::create_directories(path(name));
    return train(options_of(name, sets, {}, stop));
  }
  /// Returns those of one rank of `group`.
  RunOptions options_of(const std::string& name, const Sets& sets, const comm::Group& group,
                        std::atomic<int>* stop) const {
    RunOptions options;
    options.job = parse_job(small_job(path("data"), 12), "small.toml",
                            Sets{"training.micro_batch=1", "lr_scheduler.warmup_steps=0"} + sets);
    options.run_directory = path(name);
    options.world = group;
    options.console = false;
    options.stop_signal = stop;
    const std::string log = log_file(name) + (group.rank() == 0 ? "" : "-of-others");
    options.log = Log(log, group.rank(), LogLevel::kWarning, LogLevel::kNothing);
    return options;
  }
  std::future<int> start(const std::string& name, const Sets& sets,
                         std::atomic<int>* stop = nullptr) const {
    return std::async(std::launch::async, [=, this] {
      return train_in(name, Sets{"elastic.enabled=true", "elastic.suspect_after_s=2"} + sets, stop);
    });
  }
  /// Makes a member join the one in the folder `name`, once that is there.
  Sets joining(const std::string& name) const {
    const std::string file = RunDirectory(path(name)).address();
    for (const Deadline end = Deadline::in(std::chrono::minutes(5)); !end.passed();
         std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
      std::ifstream in(file);
      std::string address;
      if (std::getline(in, address)) return {"elastic.join=[\"" + address + "\"]"};
    }
    throw Error(ErrorKind::kTimeout, "test", "no " + file);
  }
  std::vector<StepMetrics> metrics(const std::string& name) const {
    return read_metrics(RunDirectory(path(name)).metrics());
  }
  std::vector<LineageStep> lineage(const std::string& name) const {
    return read_lineage(RunDirectory(path(name)).lineage());
  }
  /// Returns the warnings of all starts in that folder.
  std::string log_of(const std::string& name) const {
    std::ifstream in(log_file(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Waits until the last step of a member fits.
  template <class Fits>
  void wait_for(const std::string& name, const Fits& fits) const {
    for (const Deadline end = Deadline::in(std::chrono::minutes(5)); !end.passed();
         std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      const auto steps = lineage(name);
      if (!steps.empty() && fits(steps.back())) return;
    }
    ADD_FAILURE() << "the group does not get there";
  }
  Replayed replay_of(const std::string& name) const { return replay(path(name)); }

 private:
  std::string log_file(const std::string& name) const { return path(name) + "/warnings"; }

  TemporaryFolder folder_;
};

}  // namespace shoal::train
