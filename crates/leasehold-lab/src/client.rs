//! A minimal blocking client of the Redis protocol.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::resp::{NotWhole, Reply};

pub const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to a server. Drop it after a time-out: the next reply may be the late one.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub fn tcp(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_nodelay(true)?;
        Client::over(stream)
    }

    pub fn unix(path: &Path) -> io::Result<Self> {
        // A `TcpStream` reads, writes and times out on a stream socket of any kind.
        Client::over(OwnedFd::from(UnixStream::connect(path)?).into())
    }

    fn over(stream: TcpStream) -> io::Result<Self> {
        let mut client = Client { stream, received: Vec::new() };
        client.patience(PATIENCE)?;
        Ok(client)
    }

    pub fn patience(&mut self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))?;
        self.stream.set_write_timeout(Some(patience))
    }

    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.send(&Client::encoded(args))?;
        self.receive()
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for the next reply or push message.
    pub fn receive(&mut self) -> io::Result<Reply> {
        loop {
            let mut rest = &self.received[..];
            match Reply::take(&mut rest) {
                Ok(reply) => {
                    self.received = rest.to_vec();
                    return Ok(reply);
                }
                Err(NotWhole::Garbage) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the server does not speak RESP"));
                }
                Err(NotWhole::More) => {}
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.received.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel reports a socket time-out as `WouldBlock`.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Encodes a command, for tests that send several at once.
    pub fn encoded<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    /// Returns the client if no unread bytes and no end of the connection are pending.
    pub(crate) fn if_quiet(mut self) -> Option<Self> {
        self.stream.set_nonblocking(true).ok()?;
        let looked = self.stream.read(&mut [0]);
        self.stream.set_nonblocking(false).ok()?;
        let is_quiet =
            self.received.is_empty() && looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        is_quiet.then_some(self)
    }
}
