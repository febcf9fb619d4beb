"""What the oracles of this folder share. The program that is tested is their first argument."""
import subprocess
import sys


def shoal(*words):
    """What `shoal words...` prints; ends the test where it fails."""
    words = [str(word) for word in words]
    done = subprocess.run([sys.argv[1], *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"shoal {' '.join(words)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr}")
    return done.stdout


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")
