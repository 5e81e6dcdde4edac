//! The faults of a network, lasting or for one request, and the traffic counts.

use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    Server,
    Client,
}

/// The treatment of all bytes in one direction, on every connection, also of bytes under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    #[default]
    Pass,
    /// Adds latency and keeps the order. Bandwidth is unlimited.
    Delay(Duration),
    /// Adds random latency between the two, by a seed, and keeps the order.
    Jitter { least: Duration, most: Duration, seed: u64 },
    /// Keeps the bytes, and the end of a connection, until the flow changes: a request may arrive
    /// long after its client has gone.
    Hold,
    /// Drops the bytes and keeps the connection open. A connection that has lost bytes in one
    /// direction stays silent there for good: a later reply would be taken for that of an earlier
    /// request, which no real network does. New connections follow the current flow.
    Swallow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The client gets an error when it reads or writes.
    Reset,
    /// The client reads to the end of the bytes that were sent.
    Finish,
}

/// A fault of one request or its reply.
///
/// The server never sees a reset from a trick, only an end: a reset could discard bytes that it has
/// not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trick {
    /// The request is executed; the connection stays open and silent, as with [`Flow::Swallow`].
    LoseReply,
    /// The request is executed; the connection is cut after this many bytes of the reply. Earlier
    /// replies arrive.
    CutReply { after: usize, by: Cut },
    /// The connection is cut after this many bytes of the request.
    CutRequest { after: usize, by: Cut },
    /// The server gets the request twice in a row, and the client gets the first reply.
    Duplicate,
    /// The request is executed; these bytes replace its reply.
    Answer(Vec<u8>),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub connections: u64,
    pub open: u64,
    /// Requests that clients sent, each of a pipeline on its own, delivered or not.
    pub requests: u64,
    /// Requests by command, in capitals.
    pub commands: BTreeMap<String, u64>,
    /// Replies that the server sent, delivered or not, without pushes.
    pub replies: u64,
    /// Directions of connections that are silent after lost bytes.
    pub silenced: u64,
    pub bytes_from_clients: u64,
    pub bytes_from_server: u64,
}
