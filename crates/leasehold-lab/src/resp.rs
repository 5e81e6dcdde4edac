//! The smallest client of the Redis protocol: it blocks, and takes answers as they come.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::frame::{self, Found};

/// How long a client waits for an answer, unless it is told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A word such as `OK`; also a number that is not whole.
    Status(String),
    /// A refusal, with its code: `NOPERM …`.
    Error(String),
    /// A whole number; also yes (1) and no (0).
    Int(i64),
    /// A value.
    Bulk(Vec<u8>),
    /// Nothing.
    Nil,
    /// Several; a map is its keys and values in turn.
    Array(Vec<Reply>),
    /// What was sent unasked (RESP3).
    Push(Vec<Reply>),
}

impl Reply {
    /// Whether it is `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Reply::Status(text) if text == "OK")
    }

    /// The text of a status or a value, if it is text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Reply::Status(text) => Some(text),
            Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn int(&self) -> Option<i64> {
        match self {
            Reply::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// The text of a refusal.
    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }

    /// Takes one off the front of what [`frame::reply`] has found to be whole.
    fn take(bytes: &mut &[u8]) -> Option<Reply> {
        let line = frame::line(bytes)?;
        let (kind, rest) = line.split_first()?;
        *bytes = &bytes[line.len() + 2..];
        let text = || String::from_utf8_lossy(rest).into_owned();
        Some(match kind {
            b'+' | b',' | b'(' => Reply::Status(text()),
            b'-' => Reply::Error(text()),
            b':' => Reply::Int(frame::number(rest)?),
            b'#' => Reply::Int(i64::from(rest == b"t")),
            b'_' => Reply::Nil,
            _ => {
                let Ok(n) = usize::try_from(frame::number(rest)?) else {
                    return Some(Reply::Nil);
                };
                match kind {
                    b'$' | b'=' | b'!' => {
                        let (value, after) = (bytes.get(..n)?, bytes.get(n + 2..)?);
                        *bytes = after;
                        match kind {
                            b'!' => Reply::Error(String::from_utf8_lossy(value).into_owned()),
                            // Its first four bytes say what kind of text it is.
                            b'=' => Reply::Bulk(value.get(4..).unwrap_or_default().to_vec()),
                            _ => Reply::Bulk(value.to_vec()),
                        }
                    }
                    b'>' => Reply::Push(Reply::take_many(bytes, n)?),
                    b'%' => Reply::Array(Reply::take_many(bytes, 2 * n)?),
                    b'|' => {
                        Reply::take_many(bytes, 2 * n)?;
                        Reply::take(bytes)?
                    }
                    _ => Reply::Array(Reply::take_many(bytes, n)?),
                }
            }
        })
    }

    fn take_many(bytes: &mut &[u8], n: usize) -> Option<Vec<Reply>> {
        (0..n).map(|_| Reply::take(bytes)).collect()
    }
}

/// One connection to a server.
///
/// Where an answer does not come in time, the connection is of no further use: what comes next may be that answer.
pub struct Client {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
}

impl Client {
    /// Connects over TCP.
    pub fn tcp(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_nodelay(true)?;
        Client::over(stream)
    }

    /// Connects through a socket in the file system.
    pub fn unix(path: &Path) -> io::Result<Self> {
        Client::over(UnixStream::connect(path)?)
    }

    fn over(stream: impl Stream + 'static) -> io::Result<Self> {
        let mut client = Client { stream: Box::new(stream), received: Vec::new() };
        client.patience(PATIENCE)?;
        Ok(client)
    }

    /// How long it waits for an answer from now on.
    pub fn patience(&mut self, patience: Duration) -> io::Result<()> {
        self.stream.patience(patience)
    }

    /// Sends a command and waits for its answer.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.send(&Client::encoded(args))?;
        self.receive()
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for the next answer, or for what is sent unasked.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let garbage = || io::Error::new(io::ErrorKind::InvalidData, "the server does not speak RESP");
        loop {
            match frame::reply(&self.received) {
                Found::Whole(length) => {
                    let reply = Reply::take(&mut &self.received[..length]).ok_or_else(garbage);
                    self.received.drain(..length);
                    return reply;
                }
                Found::Garbage => return Err(garbage()),
                Found::More => {}
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.received.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What the kernel calls a time-out on a socket.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A command as it goes over the wire, for those who send several at once.
    pub fn encoded<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    /// Itself, if nothing has arrived that nobody asked for: not even the end.
    pub(crate) fn if_quiet(mut self) -> Option<Self> {
        self.stream.nonblocking(true).ok()?;
        let looked = self.stream.read(&mut [0]);
        self.stream.nonblocking(false).ok()?;
        let is_quiet =
            self.received.is_empty() && looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        is_quiet.then_some(self)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// What TCP and Unix sockets have in common, and std has no trait for.
trait Stream: Read + Write + Send {
    fn patience(&self, patience: Duration) -> io::Result<()>;
    fn nonblocking(&self, nonblocking: bool) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }

    fn nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.set_nonblocking(nonblocking)
    }
}

impl Stream for UnixStream {
    fn patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }

    fn nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.set_nonblocking(nonblocking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(mut bytes: &[u8]) -> Option<Reply> {
        assert_eq!(frame::reply(bytes), Found::Whole(bytes.len()));
        let reply = Reply::take(&mut bytes);
        assert!(bytes.is_empty(), "left over: {}", bytes.escape_ascii());
        reply
    }

    #[test]
    fn every_kind_of_answer_is_understood() {
        assert_eq!(taken(b"+OK\r\n"), Some(Reply::Status("OK".to_owned())));
        assert_eq!(taken(b"-NOPERM no\r\n"), Some(Reply::Error("NOPERM no".to_owned())));
        assert_eq!(taken(b"!5\r\nERR x\r\n"), Some(Reply::Error("ERR x".to_owned())));
        assert_eq!(taken(b":-3\r\n"), Some(Reply::Int(-3)));
        assert_eq!(taken(b"#t\r\n"), Some(Reply::Int(1)));
        assert_eq!(taken(b"$3\r\na\r\n\r\n"), Some(Reply::Bulk(b"a\r\n".to_vec())));
        assert_eq!(taken(b"=7\r\ntxt:abc\r\n"), Some(Reply::Bulk(b"abc".to_vec())));
        for nil in [&b"$-1\r\n"[..], b"*-1\r\n", b"_\r\n"] {
            assert_eq!(taken(nil), Some(Reply::Nil));
        }
        let pair = vec![Reply::Status("a".to_owned()), Reply::Int(1)];
        assert_eq!(taken(b"*2\r\n+a\r\n:1\r\n"), Some(Reply::Array(pair.clone())));
        assert_eq!(taken(b"%1\r\n+a\r\n:1\r\n"), Some(Reply::Array(pair.clone())));
        assert_eq!(taken(b">2\r\n+a\r\n:1\r\n"), Some(Reply::Push(pair)));
        assert_eq!(taken(b"|1\r\n+a\r\n:1\r\n:2\r\n"), Some(Reply::Int(2)));
    }
}
