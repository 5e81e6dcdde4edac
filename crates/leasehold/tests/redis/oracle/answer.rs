//! `Answer`: what a store answers, without what differs between two stores that decide alike.

use std::fmt;

use leasehold::{Loss, Share};

use super::plan::{list, share};

/// The answer to an operation. Claims are named by number; of a fence it says whether it is a new one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    Granted {
        fences: u16,
        /// Whether the fence is not that of the claim's last grant.
        is_new: bool,
    },
    Busy {
        /// One of the holders.
        holder: Option<usize>,
        /// `None` for a claim of several names, because the contract does not say at which of them the waiters are counted.
        waiters: Option<usize>,
    },
    Waits,
    Released,
    NotHeld,
    /// For each ticket why it is lost, if it is.
    Renewed(Vec<Option<Loss>>),
    Converted {
        fences: u16,
        is_new: bool,
    },
    Refused,
    /// The holders, by number: the contract has no order for them.
    Evicted(Vec<usize>),
    /// The holding has ended by its TTL.
    Ended,
    /// The names in use, by number.
    Listed(Vec<usize>),
}

impl Answer {
    /// Whether another store answers the same. Which of several holders a busy answer names is up to the store; see
    /// [`Case`](super::case::Case) for the check that it is one of them.
    pub(super) fn agrees_with(&self, other: &Answer) -> bool {
        match (self, other) {
            (
                Answer::Busy { holder, waiters },
                Answer::Busy { holder: other_holder, waiters: other_waiters },
            ) => holder.is_some() == other_holder.is_some() && waiters == other_waiters,
            _ => self == other,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = |is_new: &bool| if *is_new { "a new fence" } else { "the same fence" };
        match self {
            Answer::Granted { fences, is_new } => write!(f, "granted, {}, {fences} of them", fence(is_new)),
            Answer::Busy { holder, waiters } => {
                match holder {
                    Some(holder) => write!(f, "busy, held by t{holder}")?,
                    None => write!(f, "busy, not held")?,
                }
                waiters.map_or(Ok(()), |waiters| write!(f, ", {waiters} waiting"))
            }
            Answer::Waits => write!(f, "waits"),
            Answer::Released => write!(f, "released"),
            Answer::NotHeld => write!(f, "not held"),
            Answer::Renewed(answers) => {
                let each = answers.iter().map(|lost| lost.map_or("renewed", Loss::as_str));
                write!(f, "{}", each.collect::<Vec<_>>().join(", "))
            }
            Answer::Converted { fences, is_new } => {
                write!(f, "converted, {}, {fences} of them", fence(is_new))
            }
            Answer::Refused => write!(f, "refused"),
            Answer::Evicted(holders) => write!(f, "evicted {holders:?}"),
            Answer::Ended => write!(f, "ended"),
            Answer::Listed(names) => write!(f, "listed {names:?}"),
        }
    }
}

/// How things stand with one name: who holds it, in the order of their fences, and who waits, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct View {
    pub(super) holders: Vec<(usize, Share)>,
    pub(super) waiters: Vec<(usize, Share)>,
}

impl View {
    pub(super) fn holds(&self, claim: usize) -> bool {
        self.holders.iter().any(|(holder, _)| *holder == claim)
    }

    pub(super) fn has_waiter(&self, claim: usize) -> bool {
        self.waiters.iter().any(|(waiter, _)| *waiter == claim)
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |claims: &[(usize, Share)]| {
            list(&claims.iter().map(|(claim, of)| format!("t{claim} {}", share(*of))).collect::<Vec<_>>())
        };
        write!(f, "held by [{}], [{}] wait", shown(&self.holders), shown(&self.waiters))
    }
}
