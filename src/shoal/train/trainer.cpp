#include "shoal/train/trainer.h"

#include <csignal>
#include <exception>
#include <string>

#include "shoal/base/out_of_memory.h"
#include "shoal/train/elastic/elastic_member.h"
#include "shoal/train/report/run_report.h"
#include "shoal/train/run.h"
#include "shoal/train/run_setup.h"
#include "shoal/train/training_loop.h"

namespace shoal::train {
namespace {

int train_to_end(const RunOptions& options) {
  Run run(options.world, options.run_directory, options.job.config.parallelism.in_process);
  RunSetup setup(options, run);
  RunReport report(options, run);
  setup.open();
  if (run.record.step >= run.total_steps) {
    report.already_finished();
    return 0;
  }
  setup.choose_precision();
  setup.plan_memory();
  try {
    setup.build();
    if (options.job.config.elastic.enabled) {
      run.elastic = std::make_unique<ElasticMember>(options, run);
      const auto notes = run.elastic->take_notes();
      run.notes.insert(run.notes.end(), notes.begin(), notes.end());
    }
    report.begin();
    return TrainingLoop(options, run, report).run();
  } catch (const StoppedWhileWaiting& stopped) {
    options.log.warning("stopped by signal {} before this member was in the group", stopped.signal);
    return 128 + stopped.signal;
  } catch (Error& error) {
    // The arena refuses what exceeds its limit with an error of its own.
    if (error.kind() == ErrorKind::kResource && error.operation() == "arena") {
      if (const std::string hint = setup.memory_hint(); !hint.empty()) error.hint(hint);
    }
    throw;
  } catch (const std::exception& error) {
    if (!out_of_memory(error)) throw;
    throw setup.out_of_memory_error(error.what());
  }
}

}  // namespace

int asked_to_stop(const RunOptions& options) {
  // Relaxed: the handler publishes nothing but the number itself.
  const int signal = options.stop_signal ? options.stop_signal->load(std::memory_order_relaxed) : 0;
  if (signal != 0) return signal;
  return options.board && options.board->run->stop_asked.load(std::memory_order_relaxed) ? SIGTERM
                                                                                         : 0;
}

int train(const RunOptions& options) {
  try {
    return train_to_end(options);
  } catch (const Error& error) {
    // Without it the other ranks would wait for this one until their time limit: the abort tells
    // them the cause at once.
    options.world.abort(error);
    throw;
  } catch (const std::exception& error) {
    const ErrorKind kind = out_of_memory(error) ? ErrorKind::kResource : ErrorKind::kInternal;
    // LibTorch's stack trace begins in the second line.
    const std::string text = error.what();
    options.world.abort(Error(kind, "train", text.substr(0, text.find('\n')))
                            .at(options.world.rank(), options.world.size()));
    throw;
  }
}

}  // namespace shoal::train
