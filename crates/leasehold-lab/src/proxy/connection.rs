//! One connection through a proxy: read message by message, and delivered as the network is.
//!
//! Each direction is a reader, which finds the messages and plays the tricks, and a courier behind it, who delivers when
//! and if the flow says so. Readers never wait for couriers: a client that sends into a network that stands still sees
//! its bytes accepted, as it does in life for as long as there are buffers.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep_until};

use super::fault::{Cut, Flow, Toward, Trick};
use super::hub::{Flows, Hub, is_subscription, is_unasked};
use crate::lock;
use crate::resp::{self, NotWhole, Reply};

/// The two ends of a connection.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
}

/// A task for a courier.
enum Item {
    Bytes(Vec<u8>),
    /// From here on nothing arrives any more.
    Silence,
    Cut(Cut),
    End,
}

/// With the moment it was sent at, from which delays count.
type Sent = (Instant, Item);

/// The answers that are due on a connection.
#[derive(Default)]
struct Due {
    /// The trick that is played on each answer, in order.
    tricks: VecDeque<Option<Trick>>,
    /// Set by the first subscription.
    subscribed: bool,
}

/// Returns when the connection is over on both sides, or cut by a trick.
pub(super) async fn serve(ends: Arc<Ends>, hub: &Hub) {
    let due = Mutex::new(Due::default());
    let (requests, to_server) = unbounded_channel();
    let (replies, to_client) = unbounded_channel();
    let readers = async {
        let count_request = |n: usize| hub.count(|counts| counts.bytes_from_clients += n as u64);
        let count_reply = |n: usize| hub.count(|counts| counts.bytes_from_server += n as u64);
        tokio::join!(
            read(&ends.client, requests, count_request, |bytes, out| take_request(bytes, out, hub, &due)),
            read(&ends.server, replies, count_reply, |bytes, out| take_reply(bytes, out, hub, &due)),
        );
        pending().await
    };
    let there = Courier::new(&ends.server, Toward::Server, hub).deliver(to_server);
    let back = Courier::new(&ends.client, Toward::Client, hub).deliver(to_client);
    let cut = tokio::select! {
        cut = readers => cut,
        ended = async { tokio::try_join!(there, back) } => ended.err(),
    };
    if cut == Some(Cut::Reset) {
        // It fails only for a socket that is none; and where it did, the client would see an end.
        let _ = ends.client.set_zero_linger();
    }
}

/// Reads to the end. What is not whole yet stays in the buffer, and goes as it is when no more comes.
async fn read(
    from: &TcpStream,
    out: UnboundedSender<Sent>,
    count: impl Fn(usize),
    mut take: impl FnMut(&mut &[u8], &mut Out<'_>) -> Result<(), NotWhole>,
) {
    let (mut buffer, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
    let mut is_garbage = false;
    loop {
        let n = match read_some(from, &mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(n) => n,
        };
        count(n);
        buffer.extend_from_slice(&chunk[..n]);
        let mut out = Out { courier: &out, at: Instant::now(), bytes: Vec::new() };
        let mut rest = &buffer[..];
        let not_whole = loop {
            if let Err(not_whole) = take(&mut rest, &mut out) {
                break not_whole;
            }
        };
        let taken = buffer.len() - rest.len();
        buffer.drain(..taken);
        // Once it is not understood, it is not any more: TLS, for one.
        is_garbage |= not_whole == NotWhole::Garbage;
        if is_garbage {
            out.bytes.append(&mut buffer);
        }
        out.flush();
    }
    let at = Instant::now();
    // It fails where the other side has gone.
    let _ = out.send((at, Item::Bytes(buffer)));
    let _ = out.send((at, Item::End));
}

/// The bytes and tasks for the courier, in as few pieces as possible.
struct Out<'a> {
    courier: &'a UnboundedSender<Sent>,
    at: Instant,
    bytes: Vec<u8>,
}

impl Out<'_> {
    fn flush(&mut self) {
        if !self.bytes.is_empty() {
            let bytes = std::mem::take(&mut self.bytes);
            let _ = self.courier.send((self.at, Item::Bytes(bytes)));
        }
    }

    fn item(&mut self, item: Item) {
        self.flush();
        let _ = self.courier.send((self.at, item));
    }
}

fn take_request(bytes: &mut &[u8], out: &mut Out<'_>, hub: &Hub, due: &Mutex<Due>) -> Result<(), NotWhole> {
    let before = *bytes;
    let command = resp::take_request(bytes)?;
    let request = &before[..before.len() - bytes.len()];
    if command.is_empty() {
        out.bytes.extend_from_slice(request);
        return Ok(());
    }
    let trick = hub.request(&command);
    let mut due = lock(due);
    if let Some(Trick::CutRequest { after, by }) = trick {
        out.bytes.extend_from_slice(&request[..after.min(request.len())]);
        out.item(Item::Cut(by));
        return Ok(());
    }
    out.bytes.extend_from_slice(request);
    if is_subscription(&command) {
        due.subscribed = true;
        return Ok(());
    }
    if trick == Some(Trick::Duplicate) {
        out.bytes.extend_from_slice(request);
        due.tricks.push_back(None);
    }
    due.tricks.push_back(trick);
    Ok(())
}

fn take_reply(bytes: &mut &[u8], out: &mut Out<'_>, hub: &Hub, due: &Mutex<Due>) -> Result<(), NotWhole> {
    let before = *bytes;
    let message = Reply::take(bytes)?;
    let reply = &before[..before.len() - bytes.len()];
    let mut due = lock(due);
    if is_unasked(&message, due.subscribed) {
        out.bytes.extend_from_slice(reply);
        return Ok(());
    }
    hub.count(|counts| counts.replies += 1);
    match due.tricks.pop_front().flatten() {
        None | Some(Trick::CutRequest { .. }) => out.bytes.extend_from_slice(reply),
        // The answer to the copy.
        Some(Trick::Duplicate) => {}
        Some(Trick::Answer(bytes)) => out.bytes.extend_from_slice(&bytes),
        Some(Trick::LoseReply) => out.item(Item::Silence),
        Some(Trick::CutReply { after, by }) => {
            out.bytes.extend_from_slice(&reply[..after.min(reply.len())]);
            out.item(Item::Cut(by));
        }
    }
    Ok(())
}

/// Delivers what goes in one direction.
struct Courier<'a> {
    to: &'a TcpStream,
    toward: Toward,
    hub: &'a Hub,
    flows: watch::Receiver<Flows>,
    /// The moment at which the last piece was due: no piece overtakes another.
    last_due: Instant,
}

impl<'a> Courier<'a> {
    fn new(to: &'a TcpStream, toward: Toward, hub: &'a Hub) -> Self {
        Courier { to, toward, hub, flows: hub.flows(), last_due: Instant::now() }
    }

    /// Until the end of what is sent has arrived, or the other side has gone, or the connection is to be cut. Where
    /// something was swallowed, the end never arrives; but once it was sent, there is nothing more to wait for, and what
    /// keeps the connection open is the other direction.
    async fn deliver(mut self, mut items: UnboundedReceiver<Sent>) -> Result<(), Cut> {
        while let Some((sent, item)) = items.recv().await {
            if !self.may_arrive(sent).await {
                self.hub.count(|counts| counts.silenced += 1);
                break;
            }
            match item {
                Item::Bytes(bytes) => {
                    if write_all(self.to, &bytes).await.is_err() {
                        return Ok(());
                    }
                }
                Item::Silence => {
                    self.hub.count(|counts| counts.silenced += 1);
                    break;
                }
                Item::Cut(by) => return Err(by),
                Item::End => {
                    // It fails where the other side has gone already.
                    let _ = rustix::net::shutdown(self.to, rustix::net::Shutdown::Write);
                    return Ok(());
                }
            }
        }
        while items.recv().await.is_some() {}
        Ok(())
    }

    /// Waits until something that was sent then may arrive; `false` if it never does.
    async fn may_arrive(&mut self, sent: Instant) -> bool {
        let mut rolled: Option<(Flow, Option<Duration>)> = None;
        loop {
            let flow = self.flows.borrow_and_update()[self.toward as usize];
            match flow {
                Flow::Pass => return true,
                Flow::Swallow => return false,
                // The proxy is gone, and so is this connection in a moment.
                Flow::Hold if self.flows.changed().await.is_err() => return false,
                Flow::Hold => continue,
                Flow::Delay(_) | Flow::Jitter { .. } => {}
            }
            // The dice are cast once for each piece, however often it is looked at.
            let delay = match rolled {
                Some((rolled_for, delay)) if rolled_for == flow => delay,
                _ => self.hub.delay(self.toward, flow),
            };
            rolled = Some((flow, delay));
            let due = (sent + delay.unwrap_or_default()).max(self.last_due);
            tokio::select! {
                () = sleep_until(due) => {
                    self.last_due = due;
                    return true;
                }
                _ = self.flows.changed() => {}
            }
        }
    }
}

async fn read_some(from: &TcpStream, chunk: &mut [u8]) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read(chunk) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
