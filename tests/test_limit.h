#pragma once

namespace shoal {

/// Ends this program when one of its tests takes longer than any test may (SHOAL_TEST_SECONDS, 600
/// unless set, 0 for no limit), with the test's name and the stack of each thread on standard
/// error. Without it a test that waits forever costs what ctest allows the whole program, and says
/// nothing: GoogleTest's brief output names a test only when it is over. Uses SIGALRM and SIGUSR2.
/// A child made by fork() has no limit.
void end_stuck_tests();

}  // namespace shoal
