//! The one public error. Busy, lost, unreachable, without a quorum, unknown, late, refused, stale, contended, untrusted,
//! unsupported, invalid and closed never share a variant.

use std::fmt;
use std::time::Duration;

use crate::claim::{Busy, ENDLESS, Names};
use crate::event::Loss;
use crate::fence::Fence;
use crate::name::Name;
use crate::token::Owner;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in words for the person who has to do something about it.
///
/// | variant | is the lock held? | what to do |
/// |---|---|---|
/// | [`Busy`](Error::Busy) | no, somebody else has it | wait longer, or come back |
/// | [`Lost`](Error::Lost) | no longer | roll back what the lock protected |
/// | [`Unreachable`](Error::Unreachable) | it counts as not held | look at the store; what may have been executed is withdrawn |
/// | [`Quorum`](Error::Quorum) | it counts as not held; after `extend`: as before | see what each node says |
/// | [`Unknown`](Error::Unknown) | after `release`, `detach`, `upgrade` and `downgrade`: no; after `extend`: as before; after `keep_for`: for that time, or until its TTL is over; of a value: there is none | nothing, or extend again; look at the value |
/// | [`Late`](Error::Late) | briefly; it was given back | a longer TTL, or a nearer store |
/// | [`Refused`](Error::Refused) | no | do what the store asks for |
/// | [`Stale`](Error::Stale) | no longer | roll back: somebody who came later has written |
/// | [`Contended`](Error::Contended) | there is none | take a lock for it, or allow more tries |
/// | [`Untrusted`](Error::Untrusted) | no, nothing was sent | name its authority, or see who answers there |
/// | [`Unsupported`](Error::Unsupported) | no | choose another store or kind |
/// | [`Invalid`](Error::Invalid) | no, nothing was sent | correct the value |
/// | [`Closed`](Error::Closed) | no | connect again |
/// | [`System`](Error::System) | no, nothing was sent | give the process what it lacks |
/// | [`InsideRuntime`](Error::InsideRuntime) | no, nothing was sent | the async API, or `spawn_blocking` |
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else holds it, and the wait (if any) is over.
    #[error(fmt = write_busy)]
    Busy {
        /// What was asked for.
        names: Names,
        /// Who holds it, as far as the store told.
        busy: Busy,
        /// How long the caller waited.
        waited: Duration,
    },

    /// The lease ended before its holder let go: what it protected may have been touched by others.
    #[error("the lease on {names} was lost: {reason}; roll back what it protected")]
    Lost {
        /// What was held.
        names: Names,
        /// Why it is held no more.
        reason: Loss,
    },

    /// The store gave no answer. It counts as "not held"; a request that may have been executed all the same is being
    /// withdrawn.
    #[error("the {store} store gave no answer: {why}; see that it runs and can be reached, then try again")]
    Unreachable {
        /// Which store, as its URL scheme says.
        store: &'static str,
        /// What was seen.
        why: String,
    },

    /// Too few of a store's nodes agreed, because too few of them could. What each of them said is in it; what any of them
    /// may have granted is withdrawn.
    #[error(fmt = write_quorum)]
    Quorum {
        /// What they were to do: `granted`, `renewed`, `released`, `reached`, …
        what: &'static str,
        /// How many have to agree.
        needed: usize,
        /// How many did.
        agreed: usize,
        /// Each node's own answer.
        nodes: Vec<NodeAnswer>,
    },

    /// A release, an extension, a detach, a conversion or a change of a value without an answer: it may or may not have been
    /// executed.
    #[error(fmt = write_unknown)]
    Unknown {
        /// What was held.
        names: Names,
        /// The operation: `release`, `release detached`, `extend`, `detach`, `keep`, `upgrade` or `downgrade`; `change` for a value.
        what: &'static str,
        /// What was seen.
        why: String,
    },

    /// A grant came with too little of its TTL left, could not be renewed in time, and was given back.
    #[error(
        "the grant on {names} came with {} left, less than the {} needed (`min_validity`, by default half the TTL), and was \
         given back; use a longer TTL",
        Exact(*left), Exact(*needed)
    )]
    Late {
        /// What was asked for.
        names: Names,
        /// What was left of the TTL.
        left: Duration,
        /// The `min_validity` of the request.
        needed: Duration,
    },

    /// The store answered, and the answer was an error of its own. Nothing changed.
    #[error("the {store} store refused: {why}")]
    Refused {
        /// Which store.
        store: &'static str,
        /// What it said, and what to do.
        why: String,
    },

    /// A write under a fence came after one under a higher fence. Nothing changed.
    #[error(
        "the write to `{name}` under fence {fence} came too late: something was written under fence {newer}; the lease is lost, \
         roll back what it protected"
    )]
    Stale {
        /// What was to be written.
        name: Name,
        /// Under which fence.
        fence: Fence,
        /// The higher one.
        newer: Fence,
    },

    /// An update was overtaken by others each time it was tried. Nothing changed.
    #[error(
        "others changed `{name}` each of the {tries} times it was to be updated; where so many write, take a lock for it \
         (`locks.mutex`), or a counter if it is a number, or allow more tries"
    )]
    Contended {
        /// What was to be updated.
        name: Name,
        /// How often.
        tries: u32,
    },

    /// The store did not prove, by TLS, who it is. Nothing was sent.
    #[error("the {store} store did not prove who it is: {why}")]
    Untrusted {
        /// Which store.
        store: &'static str,
        /// What was seen, and what to do.
        why: String,
    },

    /// This store cannot do that.
    #[error("the {store} store does not offer {what}: {why}")]
    Unsupported {
        /// Which store.
        store: &'static str,
        /// What was asked for.
        what: &'static str,
        /// Why it is not offered.
        why: &'static str,
    },

    /// A value was refused before anything was sent.
    #[error("invalid {what} {given}: {why}")]
    Invalid {
        /// What kind of value.
        what: &'static str,
        /// The value, shortened and escaped so that it is safe to show.
        given: String,
        /// What is wrong, and what would be right.
        why: String,
    },

    /// The client was closed, is being [drained](crate::Locks::drain), or its runtime has shut down.
    #[error("this client is closed; connect again")]
    Closed,

    /// The operating system or the runtime lacks something this client needs.
    #[error("no {what}: {why}")]
    System {
        /// What is missing.
        what: &'static str,
        /// Why, and what to do.
        why: String,
    },

    /// A blocking call was made where blocking would stall an async runtime.
    #[error(
        "a blocking call inside an async runtime would stall it; use the async API, or tokio::task::spawn_blocking"
    )]
    InsideRuntime,
}

impl Error {
    /// Builds an [`Error::Invalid`]: `given` is escaped and shortened, so hostile input is safe to show.
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

    /// Whether the request may have been executed although no answer came.
    ///
    /// True for exactly the errors after which a clean-up is owed.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Unknown { .. } | Error::Unreachable { .. } => true,
            Error::Quorum { nodes, .. } => nodes.iter().any(|node| node.said.is_unknown()),
            _ => false,
        }
    }
}

/// Changes a value that is still valid. The first error stays, for the caller that uses the value.
pub(crate) fn change_valid<T>(value: &mut Result<T>, change: impl FnOnce(&mut T) -> Result<()>) {
    if let Ok(valid) = value
        && let Err(error) = change(valid)
    {
        *value = Err(error);
    }
}

/// What one node of a store said.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// Where it is.
    pub node: String,
    /// Its answer.
    pub said: NodeSaid,
}

/// A node's answer, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeSaid {
    /// It did what was asked.
    Agreed,
    /// Somebody else holds it there.
    Held {
        /// Who.
        holder: Owner,
        /// For how long, unless renewed; `None` where that has no end.
        remaining: Option<Duration>,
    },
    /// Nothing of the lease is there.
    Gone,
    /// It has given a fence that is as high.
    Fenced,
    /// Its clock is too far from the others'.
    ClockOff {
        /// By how much, in µs; below zero where it is behind.
        ahead_us: i64,
    },
    /// It started anew or was flushed, may have forgotten what it granted before, and has no vote until that has ended.
    Quarantined {
        /// For how long.
        remaining: Duration,
    },
    /// Its clock was set forward since it was asked the last time.
    ClockLeapt,
    /// It was asked, and gave no answer in time.
    TimedOut {
        /// How long that is.
        after: Duration,
    },
    /// It was asked, and gave no answer.
    NoAnswer {
        /// What was seen.
        why: String,
    },
    /// There is no connection to it; it was not asked.
    NotReached {
        /// What was seen.
        why: String,
    },
    /// It answered with an error of its own.
    Refused {
        /// What it said, and what to do.
        why: String,
    },
}

impl NodeSaid {
    /// Whether it may have done what was asked although no answer came.
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
    // By when enough of them vote again, if it is that.
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

/// Text from outside in back-quotes: escaped, at most 64 characters of it.
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

/// A duration that was set, or that is compared with another: as [`Short`], and never rounded to minutes or hours.
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
        // To the nearest: a user who asked for ten minutes does not want to read nine.
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
        // Whoever held it has gone, or others stand in line before us.
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
