"""`python -m shoal.run` runs programs that know nothing of Shoal; its launcher, on programs without PyTorch, which start at once."""
import os
import re
import signal
import tempfile
import textwrap
import time
import unittest

from launched import PROGRAMS, records, run, run_timed, start

FRAMEWORKS = ("with_accelerate.py", "with_trainer.py", "with_lightning.py")
# PyTorch 2.11 with a model that outlives destroy_process_group, about 1 in 15 at the exit, also under torchrun: Gloo's threads are still there.
GLOO_ABORTS = "terminate called without an active exception"


class UnchangedPrograms(unittest.TestCase):
    def test_gloo_is_replaced_wherever_it_is_asked_for(self):
        code, output = run("--nproc", 2, PROGRAMS / "asks_for_gloo.py", "--some", "argument")
        self.assertEqual(code, 0, output)
        self.assertIn("[0] shoal: the program asked for gloo; its CPU collectives run on shoal", output)
        found = records(output)
        for rank in range(2):
            for name in ("named", "new_group", "inherited", "pair", "mesh"):
                self.assertEqual(found[rank][name], ["gloo", "shoal", 3.0], name)
            self.assertEqual(found[rank]["unnamed"], ["undefined", "shoal", 3.0])  # PyTorch's word for none
            for name in ("gloo", "cpu:gloo,cuda:gloo"):
                self.assertEqual(found[rank][name], [name, "shoal", 3.0, "gloo"])
            self.assertEqual(found[rank]["config"], "cpu:shoal")
            self.assertEqual(found[rank]["threads"], max(1, len(os.sched_getaffinity(0)) // 2))
            self.assertEqual(found[rank]["arguments"], ["--some", "argument"])
        self.assertEqual(found[0]["child"], "shoal")

    def losses_on(self, backend, program):
        """What rank 0 of the program printed."""
        for _ in range(4):
            code, output = run("--nproc", 2, *(["--keep-gloo"] if backend == "gloo" else []), PROGRAMS / program)
            if not (backend == "gloo" and GLOO_ABORTS in output):
                break
        self.assertEqual(code, 0, output)
        self.assertEqual("run on shoal" in output, backend == "shoal", output)
        return records(output)[0]

    def check_losses(self, ours, theirs, name):
        self.assertLess(ours[-1], 0.95 * ours[0], name)  # it learns
        for a, b in zip(ours, theirs, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5, msg=name)

    def test_losses_are_those_of_gloo(self):
        shoal, gloo = self.losses_on("shoal", "trains.py"), self.losses_on("gloo", "trains.py")
        for name in ("ddp", "fsdp2", "tensor parallel"):
            self.check_losses(shoal[name], gloo[name], name)

    def test_frameworks(self):
        """Their losses are those of Gloo, and a rank that is killed afterwards is named at once."""
        for program in FRAMEWORKS:
            with self.subTest(program):
                output = self.check_killed(program)
                self.assertIn("run on shoal", output)
                shoal, gloo = records(output)[0], self.losses_on("gloo", program)
                self.assertEqual((shoal["size"], shoal["backend"], gloo["size"]), (2, "cpu:shoal", 2))
                self.check_losses(shoal["losses"], gloo["losses"], program)

    def test_accelerates_own_test(self):
        """What `accelerate test` runs: splits of every kind of value, data loaders, training."""
        code, output = run("--nproc", 2, "-m", "accelerate.test_utils.scripts.test_script", ACCELERATE_USE_CPU="true")
        self.assertEqual(code, 0, output)
        self.assertIn("run on shoal", output)
        self.assertIn("**Training integration test**", output)

    def test_a_rank_of_a_framework_that_fails(self):
        """Though Lightning catches the exception on its way."""
        self.check_raised("with_lightning.py")

    def test_a_rank_of_each_parallelism_that_ends(self):
        for name in ("ddp", "fsdp2", "tensor parallel"):
            self.check_killed("trains.py", 20, name)
        self.check_raised("trains.py", 20, "fsdp2")

    def check_raised(self, program, *arguments):
        """It is named with its own words, when Python has printed them and taken down what it had loaded."""
        text = (PROGRAMS / "step_watch.py").read_text()
        line = text[:text.index("raise ValueError")].count("\n") + 1
        cause = f"rank 1 of 2 failed at step_watch.py:{line}: ValueError: the data is empty"
        self.check_soon("raise", 1, cause, 3, program, *arguments)

    def check_failure(self, way, size, code, cause, program="fails.py", *arguments):
        got, lines = run_timed("--nproc", size, PROGRAMS / program, *arguments, way)
        output = "\n".join(line for _, line in lines)
        self.assertEqual(got, code, output)
        [end] = re.findall(r"^\[1\] the end (\S+)$", output, re.M)
        said = [(when, line) for when, line in lines if line.startswith("shoal.run: rank")]
        self.assertEqual([line for _, line in said], [f"shoal.run: {cause}"], output)
        return said[0][0] - float(end), output

    def test_the_first_cause_is_named_and_not_its_echoes(self):
        """With its own words, which its peers hear too."""
        cause = "failed at fails.py:16: ValueError: the data is empty"
        _, output = self.check_failure("raise", 3, 1, f"rank 1 of 3 {cause}")
        for rank in (0, 2):
            self.assertRegex(output, rf"(?m)^\[{rank}\] .*rank 1 failed: ValueError: the data is empty \(fails.py:16\)")

    def test_two_tasks_of_slurm_on_two_nodes(self):
        """With srun's variables alone. The launcher of the other node passes on what the failed rank said."""
        step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_ID": "0",
                "SLURM_STEP_NODELIST": "localhost,elsewhere", "SLURM_JOB_ID": str(os.getpid())}
        launchers = [start("shoal.run", PROGRAMS / "fails.py", "raise", **step, SLURM_PROCID=str(node), SLURM_NODEID=str(node),
                           SHOAL_HOST=str(node), SHOAL_INTERFACE="lo") for node in range(2)]
        for node, launcher in enumerate(launchers):
            self.addCleanup(launcher.kill)
            output = launcher.communicate(timeout=120)[0]
            self.assertEqual(launcher.returncode, 1, output)
            self.assertIn("starts 1 rank of 2", output)
            words = "rank 1 of 2 failed at fails.py:16: ValueError: the data is empty" if node == 1 else "rank 0 of 2 failed at fails.py:17"
            self.assertIn(f"shoal.run: {words}", output)
            if node == 0:
                self.assertRegex(output.splitlines()[-1], r"ValueError: the data is empty \(fails.py:16\) \(rank 1 of 2\)$")

    def test_a_killed_rank_is_named_within_a_second(self):
        self.check_killed("fails.py")

    def check_killed(self, program, *arguments):
        return self.check_soon("kill", 128 + signal.SIGKILL, "rank 1 of 2 was killed by signal 9 (Killed)", 1, program, *arguments)

    def check_soon(self, way, code, cause, most_seconds, program, *arguments):
        """Within so many seconds in one of three runs: on a busy machine the launcher itself may not get a core in time. Returns what was printed."""
        for _ in range(3):
            seconds, output = self.check_failure(way, 2, code, cause, program, *arguments)
            if seconds < most_seconds:
                return output
        self.fail(f"named after {seconds:.1f} s")


class Launcher(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def program(self, text):
        path = os.path.join(self.folder, "program.py")
        with open(path, "w") as file:
            file.write("import os, signal, subprocess, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(text))
        return path

    def test_what_torchrun_tells_a_rank(self):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
        show = self.program(f"print(*(os.environ[name] for name in {names}))")
        code, output = run("--nproc", 3, "--nnodes", 2, "--node-rank", 1, "--rendezvous", "[fd00::1]:7000", show, OMP_NUM_THREADS="5")
        self.assertEqual(code, 0, output)
        self.assertEqual(sorted(re.findall(r"^\[(\d)\] (.*)$", output, re.M)),
                         [(str(rank), f"{rank} 6 {rank - 3} 3 1 fd00::1 7000 5") for rank in (3, 4, 5)])
        self.assertIn("starts 3 ranks of 6 with 5 threads each", output)

    def test_ranks_of_one_node_meet_at_a_port_that_rank_0_can_listen_on(self):
        meet = self.program("""
            import socket
            assert "torch" not in sys.modules
            if rank == 0:
                with socket.create_server(("", int(os.environ["MASTER_PORT"])), family=socket.AF_INET6, dualstack_ipv6=True) as server:
                    print(server.accept()[0].recv(5).decode())
            else:
                for _ in range(500):
                    try:
                        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).send(b"hello")
                        break
                    except ConnectionRefusedError:
                        time.sleep(0.01)
            """)
        code, output = run("--nproc", 2, meet)
        self.assertEqual(code, 0, output)
        self.assertIn("[0] hello\n", output)

    def test_lines_of_ranks_do_not_mix(self):
        write = self.program("""
            for _ in range(200):
                os.write(1, b"%d" % rank * 3000)
                os.write(1, b"%d" % rank * 3000 + b"\\n")
            os.write(1, b"no end")
            """)
        code, output = run("--nproc", 3, write)
        self.assertEqual(code, 0)
        lines = output.splitlines()[1:]
        for rank in range(3):
            self.assertEqual(lines.count(f"[{rank}] " + str(rank) * 6000), 200)
            self.assertEqual(lines.count(f"[{rank}] no end"), 1)
        self.assertEqual(len(lines), 603)

    def test_exit_codes_and_the_earliest_of_equals(self):
        fails = self.program("""
            if sys.argv[1] == "code":
                sys.exit(7 if rank == 2 else 0)
            marker = os.path.join(os.path.dirname(__file__), "rank 1 fails")
            if rank == 1:
                open(marker, "w").close()
            else:
                while not os.path.exists(marker):
                    time.sleep(0.01)
                time.sleep(0.5)
            raise KeyError("x")
            """)
        code, output = run("--nproc", 3, fails, "code")
        self.assertEqual((code, output.splitlines()[-1]), (7, "shoal.run: rank 2 of 3 ended with code 7 and left no error report"))
        code, output = run("--nproc", 3, fails, "raise")
        self.assertEqual(code, 1, output)
        self.assertEqual(output.splitlines()[-2:], ["shoal.run: rank 1 of 3 ended with code 1: KeyError: 'x'",
                                                    "shoal.run: ranks 0, 2 failed in the same way"])

    def test_a_failure_ends_everybody_and_what_they_have_started(self):
        fails = self.program("""
            child = subprocess.Popen(["sleep", "300"])
            print("child", child.pid, flush=True)
            signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
            if rank == 0:
                sys.exit(5)
            while True:
                time.sleep(1)
            """)
        begin = time.monotonic()
        code, output = run("--nproc", 2, "--grace", 0.5, fails)
        self.assertEqual(code, 5, output)
        self.assertIn("[1] asked", output)
        self.assertLess(time.monotonic() - begin, 10)
        children = [int(child) for child in re.findall(r"child (\d+)", output)]
        self.assertEqual(len(children), 2)
        self.assert_gone(children)

    def assert_gone(self, processes):
        end = time.monotonic() + 5
        while any(self.is_alive(process) for process in processes):
            self.assertLess(time.monotonic(), end, "orphans")
            time.sleep(0.01)

    @staticmethod
    def is_alive(process):
        try:
            with open(f"/proc/{process}/stat") as file:
                return file.read().rpartition(") ")[2][0] not in "ZX"  # a zombie has ended
        except FileNotFoundError:
            return False

    def start_ready(self, text, *options):
        """(the launcher, the processes of its two ranks, which are ready)"""
        process = start("shoal.run", "--nproc", 2, *options, self.program(text + "\nprint('ready', os.getpid(), flush=True)\nwhile True: time.sleep(1)"))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        ready = []
        while len(ready) < 2:
            line = process.stdout.readline()
            self.assertTrue(line)
            ready += [int(number) for number in re.findall(r"ready (\d+)", line)]
        return process, ready

    def test_signals_are_passed_on(self):
        for number, code in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 128 + signal.SIGINT)):
            process, ranks = self.start_ready("")
            process.send_signal(number)
            self.assertEqual(process.wait(10), code)
            self.assert_gone(ranks)
            self.assertNotIn("shoal.run: rank", process.stdout.read())  # nobody has failed
        process, ranks = self.start_ready("signal.signal(signal.SIGUSR1, lambda *_: sys.exit('told' if rank else 0))")
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(10), 1)
        self.assertIn("rank 1 of 2 ended with code 1: told", process.stdout.read())

    def test_a_rank_that_ignores_the_signal_is_killed(self):
        process, ranks = self.start_ready("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "--grace", "0.3")
        process.terminate()
        self.assertEqual(process.wait(10), 128 + signal.SIGTERM)
        self.assert_gone(ranks)
        process, ranks = self.start_ready("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "--grace", "300")
        process.terminate()
        time.sleep(0.2)
        self.assertIsNone(process.poll())
        process.terminate()  # the second means now
        self.assertEqual(process.wait(10), 128 + signal.SIGTERM)
        self.assert_gone(ranks)

    def test_nobody_survives_a_launcher_that_is_killed(self):
        process, ranks = self.start_ready("print('ready', subprocess.Popen(['sleep', '300']).pid, flush=True)")
        time.sleep(0.1)
        process.kill()
        process.wait(10)
        self.assert_gone(ranks + [int(number) for number in re.findall(r"ready (\d+)", process.stdout.read())])

    def test_wrong_command_lines(self):
        program = self.program("")
        for words, says in ((["missing.py"], "there is no file missing.py"), (["--nproc", 0, program], "--nproc must be at least 1"),
                            (["--nnodes", 2, program], "--nnodes needs --node-rank and --rendezvous"),
                            (["--nnodes", 2, "--node-rank", 2, "--rendezvous", "h:1", program], "--node-rank 2 is none of 2 nodes"),
                            (["--nnodes", 2, "--node-rank", 1, "--rendezvous", "h", program], "expected HOST:PORT"),
                            (["--node-rank", 1, program], "--node-rank needs --nnodes")):
            code, output = run(*words)
            self.assertEqual(code, 2)
            self.assertIn(says, output)
        code, output = run(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertEqual(code, 2)
        self.assertIn("forbids PyTorch to load Shoal", output)


if __name__ == "__main__":
    unittest.main()
