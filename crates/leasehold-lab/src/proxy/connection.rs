//! One connection through a proxy.
//!
//! Each direction has a reader, which splits the bytes into messages and plays the tricks, and a
//! courier, which delivers by the [`Flow`]. A reader never waits for its courier: a client that
//! sends into a stalled network sees its bytes accepted, as with real socket buffers.

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

#[derive(Debug)]
pub(super) struct Ends {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
}

enum Item {
    Bytes(Vec<u8>),
    /// No later bytes arrive.
    Silence,
    Cut(Cut),
    End,
}

/// An item for a courier, with its send time, from which delays count.
type Sent = (Instant, Item);

/// The replies that are due on a connection.
#[derive(Default)]
struct Due {
    /// The trick for each reply, in order.
    tricks: VecDeque<Option<Trick>>,
    /// Set by the first subscription.
    subscribed: bool,
}

/// Returns when the connection has ended on both sides, or a trick cuts it.
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
        // If it failed, the client would see an end and no reset.
        let _ = ends.client.set_zero_linger();
    }
}

/// Reads to the end of the stream. An incomplete message stays in the buffer until more bytes come,
/// and is passed on unchanged at the end.
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
        // After garbage, such as TLS, the stream cannot be parsed again.
        is_garbage |= not_whole == NotWhole::Garbage;
        if is_garbage {
            out.bytes.append(&mut buffer);
        }
        out.flush();
    }
    let at = Instant::now();
    // It fails if the courier has ended.
    let _ = out.send((at, Item::Bytes(buffer)));
    let _ = out.send((at, Item::End));
}

/// Collects bytes, so that the courier gets as few pieces as possible.
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
        // The reply to the copy.
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

struct Courier<'a> {
    to: &'a TcpStream,
    toward: Toward,
    hub: &'a Hub,
    flows: watch::Receiver<Flows>,
    /// The time at which the last piece was due: no piece overtakes another.
    last_due: Instant,
}

impl<'a> Courier<'a> {
    fn new(to: &'a TcpStream, toward: Toward, hub: &'a Hub) -> Self {
        Courier { to, toward, hub, flows: hub.flows.subscribe(), last_due: Instant::now() }
    }

    /// Returns when the end of the stream is delivered, the receiver is gone, or a trick cuts the
    /// connection. After lost bytes, it returns once the sender ends: the end is not delivered, and
    /// the other direction keeps the connection open.
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
                    let _ = rustix::net::shutdown(self.to, rustix::net::Shutdown::Write);
                    return Ok(());
                }
            }
        }
        while items.recv().await.is_some() {}
        Ok(())
    }

    /// Waits until an item may arrive; returns false if it is lost.
    async fn may_arrive(&mut self, sent: Instant) -> bool {
        let mut rolled: Option<(Flow, Option<Duration>)> = None;
        loop {
            let flow = self.flows.borrow_and_update()[self.toward as usize];
            match flow {
                Flow::Pass => return true,
                Flow::Swallow => return false,
                // The proxy is dropped, and ends this connection soon.
                Flow::Hold if self.flows.changed().await.is_err() => return false,
                Flow::Hold => continue,
                Flow::Delay(_) | Flow::Jitter { .. } => {}
            }
            // One random delay for each piece, also if the flow of the other direction changes.
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
