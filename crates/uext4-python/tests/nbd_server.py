"""A server of a network block device on a thread of this process, over bytes in memory.

It answers what uext4 asks of the fixed newstyle protocol, one request after the other. It is Python:
as long as the interpreter is held by a call of uext4, nothing is answered.
"""

import socket
import struct
import threading

OPTION_MAGIC = 0x49484156454F5054
REPLY_MAGIC = 0x0003E889045565A9
OPTION_EXPORT_NAME, OPTION_ABORT, OPTION_GO = 1, 2, 7
REPLY_ACK, REPLY_INFO, REPLY_UNSUPPORTED = 1, 3, 2**31 + 1
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
#: Has flags, flush.
FLAGS = 1 | 4


class Server:
    """Serves `data` at `uri` until it is closed."""

    def __init__(self, folder, data):
        self.data = data
        #: Called before each answer to a read.
        self.before_read = lambda: None
        path = str(folder / "nbd")
        self.uri = f"nbd+unix:///?socket={path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection):
        with connection, connection.makefile("rwb") as stream:
            try:
                if self._greet(stream):
                    self._answer(stream)
            except (struct.error, OSError):
                # The client has gone.
                pass

    def _greet(self, stream):
        stream.write(struct.pack(">QQH", 0x4E42444D41474943, OPTION_MAGIC, 3))
        stream.flush()
        stream.read(4)
        while True:
            _, option, length = struct.unpack(">QII", stream.read(16))
            stream.read(length)
            if option == OPTION_GO:
                self._reply(stream, option, REPLY_INFO, struct.pack(">HQH", 0, len(self.data), FLAGS))
                self._reply(stream, option, REPLY_ACK)
                return True
            self._reply(stream, option, REPLY_ACK if option == OPTION_ABORT else REPLY_UNSUPPORTED)
            if option == OPTION_ABORT:
                return False

    def _reply(self, stream, option, kind, data=b""):
        stream.write(struct.pack(">QIII", REPLY_MAGIC, option, kind, len(data)) + data)
        stream.flush()

    def _answer(self, stream):
        while True:
            head = struct.unpack(">IHHQQI", stream.read(28))
            _, _, kind, cookie, offset, length = head
            if kind == DISCONNECT:
                return
            data = b""
            if kind == READ:
                self.before_read()
                data = bytes(self.data[offset : offset + length])
            elif kind == WRITE:
                self.data[offset : offset + length] = stream.read(length)
            stream.write(struct.pack(">IIQ", 0x67446698, 0, cookie) + data)
            stream.flush()
