#include "shoal/wire/next_speaker.h"

#include <gtest/gtest.h>

namespace shoal::wire::next_speaker_test {
namespace {

constexpr int kNobody = NextSpeaker::kNobody;

/// Lets `peer` speak until it is the one that is guessed.
void let_speak(NextSpeaker& speaker, int peer) {
  for (int i = 0; i < NextSpeaker::kHeardInARow; ++i) speaker.heard(peer, 8, false);
}

/// Returns whom the next looks name that do not ask about all.
int named(NextSpeaker& speaker) {
  int peer = kNobody;
  for (unsigned i = 0; i < NextSpeaker::kLooksOfWhichOneAsks; ++i)
    if (const int next = speaker.next(); next != kNobody) peer = next;
  return peer;
}

TEST(NextSpeaker, IsWhoHasSpokenFourTimesInARow) {
  NextSpeaker speaker;
  EXPECT_EQ(named(speaker), kNobody);
  for (int i = 1; i < NextSpeaker::kHeardInARow; ++i) {
    speaker.heard(3, 8, false);
    EXPECT_EQ(named(speaker), kNobody) << i;
  }
  speaker.heard(3, NextSpeaker::kFewBytes, false);
  EXPECT_EQ(named(speaker), 3);
  speaker.heard(0, 8, false);
  EXPECT_EQ(named(speaker), kNobody) << "another one has spoken";
  let_speak(speaker, 0);
  EXPECT_EQ(named(speaker), 0);
}

TEST(NextSpeaker, IsNobodyWithinALargeMessage) {
  NextSpeaker speaker;
  let_speak(speaker, 2);
  speaker.heard(2, NextSpeaker::kFewBytes + 1, false);
  EXPECT_EQ(named(speaker), kNobody);
  let_speak(speaker, 2);
  speaker.heard(2, 100, true);
  EXPECT_EQ(named(speaker), kNobody);
  let_speak(speaker, 2);
  speaker.forget();
  EXPECT_EQ(named(speaker), kNobody);
}

// A wait may end at its first look, each time, because this peer is the quicker one.
TEST(NextSpeaker, AsksAboutAllAtOneOfFourLooksHoweverOftenOneSpeaks) {
  NextSpeaker speaker;
  int in_a_row = 0;
  for (int wait = 0; wait < 1000; ++wait) {
    speaker.heard(1, 8, false);
    in_a_row = speaker.next() == kNobody ? 0 : in_a_row + 1;
    ASSERT_LT(in_a_row, 4) << wait;
  }
}

}  // namespace
}  // namespace shoal::wire::next_speaker_test
