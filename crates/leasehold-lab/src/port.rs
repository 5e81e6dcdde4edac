//! Ports that stay reserved while no process listens on them.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

/// Below the kernel's ephemeral ports: one of those could be the local end of a connection when a
/// killed server restarts on it.
const RANGE: Range<u16> = 15_000..32_000;

const ATTEMPTS: usize = 1_000;

/// A port of this machine, for one listener at a time.
///
/// - No other lab process gets it while this value lives: the name of an abstract socket reserves
///   it, which the kernel frees however the process ends.
/// - Another program may still take it first, so a start has to be retried.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _reserved: UnixDatagram,
}

impl Port {
    pub(crate) fn free() -> io::Result<Self> {
        let span = u64::from(RANGE.end - RANGE.start);
        // A hasher's random keys suffice: two processes have to begin at different ports.
        let first = RandomState::new().hash_one(()) % span;
        let numbers = (0..span).map(|n| RANGE.start + ((first + n) % span) as u16);
        let free = numbers.take(ATTEMPTS).find_map(|number| {
            let reserved = reserve(number).ok()?;
            TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
            Some(Port { number, _reserved: reserved })
        });
        free.ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no port is free"))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

fn reserve(number: u16) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(format!("leasehold-lab-port-{number}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_again_when_it_has_come_back() -> io::Result<()> {
        let ports = (0..50).map(|_| Port::free()).collect::<io::Result<Vec<_>>>()?;
        let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50);
        assert!(reserve(numbers[0]).is_err());
        drop(ports);
        reserve(numbers[0]).map(drop)
    }
}
