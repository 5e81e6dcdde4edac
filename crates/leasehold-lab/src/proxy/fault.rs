//! What can be wrong with a network: for good, or for one request.

use std::collections::BTreeMap;
use std::time::Duration;

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// Requests.
    Server,
    /// Replies.
    Client,
}

/// What becomes of all that goes in one direction, until something else is said. It is the same for every connection,
/// and applies to what is under way too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    /// It arrives.
    #[default]
    Pass,
    /// It arrives so much later, in order. Latency, not bandwidth: what is sent together arrives together.
    Delay(Duration),
    /// It arrives later by something between the two, by a seed, in order.
    Jitter {
        /// The shortest delay.
        least: Duration,
        /// The longest delay.
        most: Duration,
        /// Where the dice begin.
        seed: u64,
    },
    /// It is kept until something else is said. Even the end of a connection is: a request may arrive long after whoever
    /// sent it has gone.
    Hold,
    /// It is gone, and the connection stays open. For good: a connection that has lost something in one direction never
    /// passes anything again in that direction, else an answer would be taken for that of an earlier question, as no
    /// network ever does. New connections do once something else is said.
    Swallow,
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// By a reset: whoever reads or writes gets an error.
    Reset,
    /// By an end: whoever reads comes to the end of what was sent.
    Finish,
}

/// What is done to one request, or to the answer to it.
///
/// A server always sees the end of a connection that is cut by a trick as an end and not as a reset: a reset might take
/// away what it has not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trick {
    /// The request is executed, and no answer comes: as with [`Flow::Swallow`], the connection stays open and silent.
    LoseReply,
    /// The request is executed, and the connection cut after so many bytes of its answer. What was answered before
    /// arrives.
    CutReply {
        /// How much of the answer arrives.
        after: usize,
        /// How the client sees it.
        by: Cut,
    },
    /// The connection is cut after so many bytes of the request: the server sees no more of it.
    CutRequest {
        /// How much of the request arrives.
        after: usize,
        /// How the client sees it.
        by: Cut,
    },
    /// The server gets the request twice, one right behind the other, and the client the first answer.
    Duplicate,
    /// The request is executed, and these bytes arrive in place of its answer.
    Answer(Vec<u8>),
}

/// What went through a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many connections clients have made.
    pub connections: u64,
    /// How many of them are open.
    pub open: u64,
    /// How many requests clients have sent, each of a pipeline counted by itself, whether or not it arrived.
    pub requests: u64,
    /// The same by command, in capitals.
    pub commands: BTreeMap<String, u64>,
    /// How many answers the server has sent, whether or not they arrived. What it sends unasked is not counted.
    pub replies: u64,
    /// How many times a direction of a connection has lost something, and passes nothing any more.
    pub silenced: u64,
    /// How many bytes clients have sent.
    pub bytes_from_clients: u64,
    /// How many bytes the server has sent.
    pub bytes_from_server: u64,
}
