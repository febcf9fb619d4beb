#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// The default job of these tests with keys changed as on the command line.
inline Job job_with(const std::vector<std::string>& sets) {
  return parse_job(
      "[model]\nname = \"gpt2-tiny\"\n[data]\nfolders = "
      "[\"a\"]\n[training]\nglobal_batch_sequences = 24\nsteps = 10\nsequence_length = 64\n",
      "job.toml", sets);
}

/// A job on the table of digits, likewise.
inline Job table_with(const std::vector<std::string>& sets) {
  return parse_job(
      "[model]\nname = \"mlp-digits\"\n[data]\nsource = "
      "\"digits\"\n[training]\nglobal_batch_sequences = 32\nepochs = 2\n",
      "job.toml", sets);
}

/// What the Error(config) that `call` throws says; a failure of the test when it throws none.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

}  // namespace shoal::train
