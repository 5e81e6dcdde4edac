//! What can be wrong with a network: for good, or for one request.

use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// Requests.
    Server,
    /// Replies.
    Client,
}

/// The treatment of all bytes that go in one direction, until another is set. It is the same for every connection,
/// and applies to what is under way too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    #[default]
    Pass,
    /// It arrives so much later, in order. Latency, not bandwidth: what is sent together arrives together.
    Delay(Duration),
    /// It arrives later by something between the two, by a seed, in order.
    Jitter { least: Duration, most: Duration, seed: u64 },
    /// It is kept until something else is said. Even the end of a connection is: a request may arrive long after whoever
    /// sent it has gone.
    Hold,
    /// It is gone, and the connection stays open. For good: a connection that has lost something in one direction never
    /// passes anything again in that direction, else an answer would be taken for that of an earlier question, as no
    /// network ever does. New connections do once something else is said.
    Swallow,
}

/// The way in which a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// By a reset: the client gets an error when it reads or writes.
    Reset,
    /// By an end: the client reads to the end of the bytes that were sent.
    Finish,
}

/// A fault of one request, or of the answer to it.
///
/// A server always sees the end of a connection that is cut by a trick as an end and not as a reset: a reset might take
/// away what it has not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trick {
    /// The request is executed, and no answer comes: as with [`Flow::Swallow`], the connection stays open and silent.
    LoseReply,
    /// The request is executed, and the connection cut after so many bytes of its answer. What was answered before
    /// arrives.
    CutReply { after: usize, by: Cut },
    /// The connection is cut after so many bytes of the request: the server sees no more of it.
    CutRequest { after: usize, by: Cut },
    /// The server gets the request twice, one right behind the other, and the client the first answer.
    Duplicate,
    /// The request is executed, and these bytes arrive in place of its answer.
    Answer(Vec<u8>),
}

/// The traffic through a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub connections: u64,
    pub open: u64,
    /// Requests that clients have sent, each of a pipeline counted by itself, whether or not it arrived.
    pub requests: u64,
    /// Requests by command, in capitals.
    pub commands: BTreeMap<String, u64>,
    /// Answers that the server has sent, whether or not they arrived. What it sends unasked is not counted.
    pub replies: u64,
    /// Directions of connections that have lost bytes, and pass nothing any more.
    pub silenced: u64,
    pub bytes_from_clients: u64,
    pub bytes_from_server: u64,
}
