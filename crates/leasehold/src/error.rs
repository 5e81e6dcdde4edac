//! The one public error. Busy, lost, unreachable, unknown and others never share a variant.

use std::fmt;
use std::time::Duration;

use crate::claim::{Busy, ENDLESS, Names};
use crate::event::Loss;
use crate::fence::Fence;
use crate::name::Name;
use crate::token::Owner;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure, in words for the person who has to act on it.
///
/// | variant | is the lock held? | what to do |
/// |---|---|---|
/// | [`Busy`](Error::Busy) | no, another holder has it | wait longer, or try again later |
/// | [`Lost`](Error::Lost) | no longer | roll back what the lock protected |
/// | [`Unreachable`](Error::Unreachable) | it counts as not held | check the store; a claim that may have been granted is withdrawn |
/// | [`Quorum`](Error::Quorum) | it counts as not held; after `extend`: as before | see what each node says |
/// | [`Unknown`](Error::Unknown) | after `release`, `detach`, `upgrade` and `downgrade`: no; after `extend`: as before; after `keep_for`: for that time, or until its TTL is over; of a value: there is none | nothing, or extend again; read the value |
/// | [`Late`](Error::Late) | briefly; it was given back | a longer TTL, or a nearer store |
/// | [`Refused`](Error::Refused) | no | do what the store asks for |
/// | [`Stale`](Error::Stale) | no longer | roll back: a later holder has written |
/// | [`Contended`](Error::Contended) | there is none | use a lock, or allow more tries |
/// | [`Untrusted`](Error::Untrusted) | no, nothing was sent | configure its certificate authority, or find out which server answers |
/// | [`Unsupported`](Error::Unsupported) | no | choose another store or kind |
/// | [`Invalid`](Error::Invalid) | no, nothing was sent | correct the value |
/// | [`Closed`](Error::Closed) | no | connect again |
/// | [`System`](Error::System) | no, nothing was sent | give the process what it lacks |
/// | [`InsideRuntime`](Error::InsideRuntime) | no, nothing was sent | the async API, or `spawn_blocking` |
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another holder has the lock, and the wait (if any) is over.
    #[error(fmt = write_busy)]
    Busy {
        /// The names requested.
        names: Names,
        /// The holder and the waiters, as far as the store told.
        busy: Busy,
        /// The time that the caller waited.
        waited: Duration,
    },

    /// The lease ended before its release: other holders may have changed what it protected.
    #[error("the lease on {names} was lost: {reason}; roll back what it protected")]
    Lost {
        /// The names that were held.
        names: Names,
        /// The reason.
        reason: Loss,
    },

    /// The store gave no answer. A request that may have been executed all the same is withdrawn.
    #[error("the {store} store gave no answer: {why}; see that it runs and can be reached, then try again")]
    Unreachable {
        /// The URL scheme of the store.
        store: &'static str,
        /// The cause.
        why: String,
    },

    /// Too few nodes agreed, because too few could. A grant of single nodes is withdrawn.
    #[error(fmt = write_quorum)]
    Quorum {
        /// The operation, as a participle: `granted`, `renewed`, `released`, `reached`, …
        what: &'static str,
        /// The number of nodes that have to agree.
        needed: usize,
        /// The number of nodes that agreed.
        agreed: usize,
        /// The answer of each node.
        nodes: Vec<NodeAnswer>,
    },

    /// A change of a lease or a value got no answer: it may or may not have been executed.
    #[error(fmt = write_unknown)]
    Unknown {
        /// The names of the lease or value.
        names: Names,
        /// The operation: `release`, `release detached`, `extend`, `detach`, `keep`, `upgrade` or
        /// `downgrade`; `change` for a value.
        what: &'static str,
        /// The cause.
        why: String,
    },

    /// A grant had too little of its TTL left, was not renewed in time, and was given back.
    #[error(
        "the grant on {names} came with {} left, less than the {} needed (`min_validity`, by default half the TTL), and was \
         given back; use a longer TTL",
        Exact(*left), Exact(*needed)
    )]
    Late {
        /// The names requested.
        names: Names,
        /// The time that was left of the TTL.
        left: Duration,
        /// The `min_validity` of the request.
        needed: Duration,
    },

    /// The store answered with an error of its own. Nothing changed.
    #[error("the {store} store refused: {why}")]
    Refused {
        /// The URL scheme of the store.
        store: &'static str,
        /// The store's message, and what to do.
        why: String,
    },

    /// A write under a fence came after a write under a higher fence. Nothing changed.
    #[error(
        "the write to `{name}` under fence {fence} came too late: something was written under fence {newer}; the lease is lost, \
         roll back what it protected"
    )]
    Stale {
        /// The name of the value.
        name: Name,
        /// The fence of the refused write.
        fence: Fence,
        /// The higher fence.
        newer: Fence,
    },

    /// Other clients changed the value during each try of an update. Nothing changed.
    #[error(
        "others changed `{name}` each of the {tries} times it was to be updated; where so many write, take a lock for it \
         (`locks.mutex`), or a counter if it is a number, or allow more tries"
    )]
    Contended {
        /// The name of the value.
        name: Name,
        /// The number of tries.
        tries: u32,
    },

    /// The store did not prove its identity by TLS. Nothing was sent.
    #[error("the {store} store did not prove who it is: {why}")]
    Untrusted {
        /// The URL scheme of the store.
        store: &'static str,
        /// The cause, and what to do.
        why: String,
    },

    /// The store does not support the operation.
    #[error("the {store} store does not offer {what}: {why}")]
    Unsupported {
        /// The URL scheme of the store.
        store: &'static str,
        /// The operation.
        what: &'static str,
        /// The reason.
        why: &'static str,
    },

    /// A value was refused before anything was sent.
    #[error("invalid {what} {given}: {why}")]
    Invalid {
        /// The kind of value.
        what: &'static str,
        /// The value, escaped and shortened, so that it is safe to show.
        given: String,
        /// The fault, and what would be valid.
        why: String,
    },

    /// The client was closed or [drained](crate::Locks::drain), or its runtime has shut down.
    #[error("this client is closed; connect again")]
    Closed,

    /// The operating system or the runtime lacks something that this client needs.
    #[error("no {what}: {why}")]
    System {
        /// The missing resource.
        what: &'static str,
        /// The cause, and what to do.
        why: String,
    },

    /// A blocking call was made where it would stall an async runtime.
    #[error(
        "a blocking call inside an async runtime would stall it; use the async API, or tokio::task::spawn_blocking"
    )]
    InsideRuntime,
}

impl Error {
    /// Builds an [`Error::Invalid`]; it escapes and shortens `given`.
    pub fn invalid(what: &'static str, given: impl AsRef<str>, why: impl Into<String>) -> Self {
        Error::Invalid { what, given: Shown(given.as_ref()).to_string(), why: why.into() }
    }

    pub(crate) fn lost(names: &Names, reason: Loss) -> Self {
        Error::Lost { names: names.clone(), reason }
    }

    pub(crate) fn unknown(names: &Names, what: &'static str, why: impl ToString) -> Self {
        Error::Unknown { names: names.clone(), what, why: why.to_string() }
    }

    /// Becomes [`Error::Unknown`] if the request may have been executed.
    pub(crate) fn or_unknown(self, names: &Names, what: &'static str) -> Self {
        if self.is_outcome_unknown() { Error::unknown(names, what, self) } else { self }
    }

    /// Returns whether an unanswered request may have been executed: only then a clean-up is due.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Unknown { .. } | Error::Unreachable { .. } => true,
            Error::Quorum { nodes, .. } => nodes.iter().any(|node| node.said.is_unknown()),
            _ => false,
        }
    }
}

/// Changes a valid value. An earlier error stays, for the caller that uses the value.
pub(crate) fn change_valid<T>(value: &mut Result<T>, change: impl FnOnce(&mut T) -> Result<()>) {
    if let Ok(valid) = value
        && let Err(error) = change(valid)
    {
        *value = Err(error);
    }
}

/// The answer of one node of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// The address of the node.
    pub node: String,
    /// Its answer.
    pub said: NodeSaid,
}

/// A node's answer, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeSaid {
    /// The node executed the request.
    Agreed,
    /// Another holder has the name on this node.
    Held {
        /// The holder.
        holder: Owner,
        /// The time left unless renewed; `None` for a lock without an expiry.
        remaining: Option<Duration>,
    },
    /// The node has nothing of the lease.
    Gone,
    /// The node has given a fence that is as high.
    Fenced,
    /// The node's clock is too far from the others'.
    ClockOff {
        /// The difference in µs; negative if the clock is behind.
        ahead_us: i64,
    },
    /// The node was restarted or flushed: no vote until the grants it may have lost have expired.
    Quarantined {
        /// The time left until then.
        remaining: Duration,
    },
    /// The node's clock was set forward since the last request.
    ClockLeapt,
    /// The node gave no answer in time.
    TimedOut {
        /// The time-out.
        after: Duration,
    },
    /// The request was sent and failed without an answer.
    NoAnswer {
        /// The cause.
        why: String,
    },
    /// There is no connection to the node; nothing was sent.
    NotReached {
        /// The cause.
        why: String,
    },
    /// The node answered with an error of its own.
    Refused {
        /// The node's message, and what to do.
        why: String,
    },
}

impl NodeSaid {
    /// Returns whether the node may have executed the request although no answer came.
    fn is_unknown(&self) -> bool {
        matches!(self, NodeSaid::TimedOut { .. } | NodeSaid::NoAnswer { .. })
    }
}

impl fmt::Display for NodeSaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeSaid::Agreed => f.write_str("yes"),
            NodeSaid::Held { holder, remaining: Some(remaining) } => {
                write!(f, "held by {holder} for another {}", Short(*remaining))
            }
            NodeSaid::Held { holder, remaining: None } => write!(f, "held by {holder}"),
            NodeSaid::Gone => f.write_str("nothing of it is there"),
            NodeSaid::Fenced => f.write_str("it has given a fence as high already"),
            NodeSaid::ClockOff { ahead_us } => {
                let side = if *ahead_us < 0 { "behind" } else { "ahead of" };
                write!(
                    f,
                    "its clock is {} {side} the others'",
                    Short(Duration::from_micros(ahead_us.unsigned_abs()))
                )
            }
            NodeSaid::Quarantined { remaining } => {
                write!(f, "it started anew or was flushed, and has no vote for another {}", Short(*remaining))
            }
            NodeSaid::ClockLeapt => f.write_str("its clock was set forward"),
            NodeSaid::TimedOut { after } => write!(f, "timed out after {}", Short(*after)),
            NodeSaid::NoAnswer { why } | NodeSaid::NotReached { why } | NodeSaid::Refused { why } => {
                f.write_str(why)
            }
        }
    }
}

fn write_quorum(
    what: &str,
    needed: &usize,
    agreed: &usize,
    nodes: &[NodeAnswer],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "{needed} of {} needed, {agreed} {what}", nodes.len())?;
    for NodeAnswer { node, said } in nodes.iter().filter(|node| node.said != NodeSaid::Agreed) {
        write!(f, "; {node}: {said}")?;
    }
    // The time until enough nodes vote again, if quarantine is the cause.
    let mut quarantined: Vec<Duration> = nodes
        .iter()
        .filter_map(|node| match node.said {
            NodeSaid::Quarantined { remaining } => Some(remaining),
            _ => None,
        })
        .collect();
    quarantined.sort();
    let missing = needed.saturating_sub(*agreed);
    if missing > 0
        && let Some(wait) = quarantined.get(missing - 1)
    {
        write!(
            f,
            "; wait {} and try again, or write `?quarantine=off` if these nodes are new and nobody can hold \
             anything on them",
            Short(*wait)
        )?;
    } else if nodes.iter().any(|node| matches!(node.said, NodeSaid::ClockOff { .. })) {
        write!(f, "; have the nodes' clocks set by NTP")?;
    }
    Ok(())
}

/// External text in back-quotes: escaped, at most 64 characters of it.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_CHARS_MAX: usize = 64;
        let mut chars = self.0.chars();
        write!(f, "`")?;
        for c in chars.by_ref().take(SHOWN_CHARS_MAX) {
            write!(f, "{}", c.escape_debug())?;
        }
        match chars.next() {
            None => write!(f, "`"),
            Some(_) => write!(f, "…` ({} bytes)", self.0.len()),
        }
    }
}

/// A duration set or compared by value: like [`Short`], never rounded to minutes or hours.
#[derive(Debug)]
pub(crate) struct Exact(pub(crate) Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match ms {
            0..119_500 => Short(self.0).fmt(f),
            _ if ms >= 7_200_000 && ms.is_multiple_of(3_600_000) => write!(f, "{} h", ms / 3_600_000),
            _ if ms.is_multiple_of(60_000) => write!(f, "{} min", ms / 60_000),
            _ => write!(f, "{} s", (ms + 500) / 1_000),
        }
    }
}

/// A duration as messages show it: `250 ms`, `12 s`, `3 min`.
#[derive(Debug)]
pub struct Short(pub Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        // Rounded to the nearest: a user who set ten minutes does not want to read nine.
        let rounded = |unit: u128| (ms + unit / 2) / unit;
        match ms {
            0..1_000 => write!(f, "{ms} ms"),
            1_000..9_950 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            9_950..119_500 => write!(f, "{} s", rounded(1_000)),
            119_500..7_170_000 => write!(f, "{} min", rounded(60_000)),
            _ => write!(f, "{} h", rounded(3_600_000)),
        }
    }
}

fn write_unknown(names: &Names, what: &str, why: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let given_back = "it is held no more, and is being given back in the background";
    let (done, so) = match what {
        "extend" => (
            format!("the lease on {names} was extended"),
            "it lasts as long as it did before, so look at what remains, or try again",
        ),
        "detach" => (format!("the lease on {names} was detached"), given_back),
        "keep" => (
            format!("the store keeps {names} taken"),
            "it is not given back: it stays taken for as long as was asked, or until its TTL is over",
        ),
        "upgrade" | "downgrade" => (format!("the {what} of the lease on {names} went through"), given_back),
        "change" => (
            format!("{names} was changed"),
            "look at it before you do it again: what is done twice may count twice",
        ),
        "release detached" => (
            format!("{names} was released"),
            "it is tried again in the background while this process runs, and its TTL ends it in any case",
        ),
        _ => (
            format!("{names} was released"),
            "it was protected until now, and is being given back in the background",
        ),
    };
    write!(f, "whether {done} is unknown ({why}); {so}")
}

fn write_busy(names: &Names, busy: &Busy, waited: &Duration, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Busy { holder, remaining, waiters } = busy;
    match holder {
        Some(owner) => write!(f, "{names} is held by {owner}")?,
        // The holder has gone, or other waiters are ahead.
        None => write!(f, "{names} was not to be had in time")?,
    }
    if let Some(remaining) = remaining {
        write!(f, " for another {} unless renewed", Short(*remaining))?;
    }
    match *waiters {
        0 => {}
        1 => write!(f, ", with 1 waiting")?,
        n => write!(f, ", with {n} waiting")?,
    }
    if !waited.is_zero() {
        write!(f, "; waited {}", Short(*waited))?;
    }
    match holder {
        Some(owner) if owner.as_str() == ENDLESS => {
            write!(f, "; if whoever took it is gone, give it an end with `leasehold adopt`")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_and_the_value_beyond_it_are_not_rounded_to_the_same_text() {
        let shown = |secs| Exact(Duration::from_secs(secs)).to_string();
        assert_eq!(
            [5, 60, 120, 125, 130, 300, 5_400, 7_200, 86_400].map(shown),
            ["5.0 s", "60 s", "2 min", "125 s", "130 s", "5 min", "90 min", "2 h", "24 h"]
        );
    }
}
