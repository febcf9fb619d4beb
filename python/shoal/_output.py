"""The output of ranks, line by line, each line with the rank's number in front."""
import os

LONGEST_LINE = 64 * 1024
TAIL = 16 * 1024


class Lines:
    """What one rank writes to one of its streams.

    `write(data)` takes whole lines, as bytes. A line ends with a newline, or with the carriage return by which progress bars begin anew; what has no
    end yet is kept until it has one, so that lines of different ranks never mix.
    """

    def __init__(self, prefix, write):
        self.prefix, self.write = prefix.encode(), write
        self.rest = b""
        self.tail = b""  # the end of all that came, without prefixes

    def feed(self, data):
        self.tail = (self.tail + data)[-TAIL:]
        text = self.rest + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r"), len(text) - 1 if len(text) >= LONGEST_LINE else -1) + 1
        whole, self.rest = text[:end], text[end:]
        if whole:
            self.write(b"".join(self.prefix + line for line in whole.splitlines(keepends=True)))

    def close(self):
        if self.rest:
            self.write(self.prefix + self.rest + b"\n")
            self.rest = b""

    def last_words(self):
        """The last line that is not empty: of a Python program that failed, its exception."""
        lines = [line.strip() for line in self.tail.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""


def to_descriptor(descriptor):
    """A function that writes bytes to an open file, and drops them once nobody reads there any more: the ranks go on."""
    gone = False

    def write(data):
        nonlocal gone
        while data and not gone:
            try:
                data = data[os.write(descriptor, data):]
            except OSError:
                gone = True

    return write
