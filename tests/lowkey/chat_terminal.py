"""A chat in a pseudo-terminal, driven like a user would."""
import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import termios
import time

PASTE_START, PASTE_END = b"\x1b[200~", b"\x1b[201~"
CTRL_C, CTRL_D, ENTER, ALT_ENTER, UP, TAB = b"\x03", b"\x04", b"\r", b"\x1b\r", b"\x1b[A", b"\t"
DEADLINE = 60  # seconds until a step has failed


class Failure(Exception):
    pass


class Chat:
    """Started with --verbose, so that each answer ends with a line about the context."""

    def __init__(self, command, environment, directory, columns=200):
        self.out = b""  # all output
        self.seen = 0   # expect() searches from here
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.modes = termios.tcgetattr(slave)
        # The chat is a job of a shell, which this process stands for: others cannot be stopped.
        self.report, report = os.pipe()
        self.shell = os.fork()
        if self.shell == 0:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, 0)
                os.tcsetpgrp(slave, os.getpid())
                signal.signal(signal.SIGTTOU, signal.SIG_DFL)
                os.chdir(directory)
                for fd in (0, 1, 2):
                    os.dup2(slave, fd)
                os.execve(command[0], command, environment)
            os.write(report, struct.pack("i", pid))
            status = os.waitpid(pid, 0)[1]
            os.write(report, struct.pack("i", os.waitstatus_to_exitcode(status)))
            os._exit(0)
        os.close(report)
        self.pid = struct.unpack("i", os.read(self.report, 4))[0]
        self.slave = slave  # kept open: the modes can be read after the chat has ended

    def read(self, seconds):
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        self.out += os.read(self.master, 65536)
        return True

    def send(self, *parts):
        """Write everything, and read meanwhile: the program may wait for its output to be read."""
        data, deadline = b"".join(parts), time.monotonic() + DEADLINE
        while data:
            if time.monotonic() > deadline:
                raise Failure(f"the terminal takes no input; {len(data)} bytes are left")
            ready = select.select([self.master], [self.master], [], 1)
            if ready[0]:
                self.out += os.read(self.master, 65536)
            if ready[1]:
                data = data[os.write(self.master, data[:1024]):]

    def expect(self, pattern, what=None):
        """Wait for the pattern in the output after the last match; returns the match."""
        deadline = time.monotonic() + DEADLINE
        while True:
            match = re.compile(pattern, re.S).search(self.out, self.seen)
            if match:
                self.seen = match.end()
                return match
            if time.monotonic() > deadline:
                raise Failure(f"expected {what or pattern!r} in {self.out[self.seen:][-800:]!r}")
            self.read(0.2)

    def prompt(self):
        self.expect(rb"> ", "a prompt")

    def answered(self):
        """Wait until an answer has ended and the next prompt is there."""
        self.expect(rb"context [\d,]+ of [\d,]+[^\n]*\n.*?> ", "the end of an answer")

    def ask(self, *parts):
        self.send(*parts, ENTER)
        self.answered()

    def command(self, text, pattern):
        self.send(text, ENTER)
        match = self.expect(pattern)
        self.prompt()
        return match

    def until(self, condition, what):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > deadline:
                raise Failure(f"not within {DEADLINE} s: {what}; output: {self.out[-400:]!r}")
            self.read(0.05)

    def state(self):
        """The letter of the process state, "T" if it is stopped."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0]

    def wait(self):
        """The exit status: negative for a signal."""
        self.until(lambda: select.select([self.report], [], [], 0)[0], "the chat ends")
        self.pid = 0
        while self.read(0):
            pass
        return struct.unpack("i", os.read(self.report, 4))[0]

    def modes_now(self):
        return termios.tcgetattr(self.slave)

    def close(self):
        if self.pid:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
                os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.shell, 0)
        os.close(self.report)
        os.close(self.master)
        os.close(self.slave)
