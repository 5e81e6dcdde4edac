//! `Operation`: one request of a sequence, the same for both stores. It names claims by number, and fences by their relation to
//! the grant, because each store has fences of its own.

use std::fmt;

use leasehold::Share;

use super::plan::{list, name, share};

/// How a claim waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Not at all.
    Never,
    /// For [`BRIEF`](super::BRIEF), in which no other operation is under way.
    Briefly,
    /// Until it is granted or withdrawn.
    Forever,
}

/// The fence that a ticket has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// None, as of a client that knows the token only.
    None,
    /// The first of the grant.
    First,
    /// The last of the grant's block: the first where the block has one fence.
    Last,
    /// The one above the block.
    Above,
    /// The one below the block.
    Below,
    /// The first of the grant before, if the claim was converted or granted anew; else the one below the block.
    Older,
}

/// A ticket: which claim it is of, and what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) claim: usize,
    pub(super) proof: Proof,
    /// The name at which it is shown, instead of those that were claimed.
    pub(super) elsewhere: Option<usize>,
    /// Says `Share::Exclusive`, as a client does that does not know the share.
    pub(super) is_share_unknown: bool,
}

impl Shown {
    /// As the client of a claim shows it.
    pub(super) fn of(claim: usize) -> Self {
        Shown { claim, proof: Proof::First, elsewhere: None, is_share_unknown: false }
    }
}

/// One operation. `client` is the number of the client that sends it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operation {
    Acquire {
        claim: usize,
        waiting: Waiting,
        client: usize,
    },
    Release {
        shown: Shown,
        client: usize,
    },
    /// One call with several tickets.
    Renew {
        shown: Vec<Shown>,
        ttl_s: u64,
        client: usize,
    },
    Detach {
        shown: Shown,
        ttl_s: u64,
        client: usize,
    },
    Convert {
        shown: Shown,
        to: Share,
        client: usize,
    },
    Evict {
        name: usize,
        client: usize,
    },
    /// The fence is that of a claim which holds the name, or held it.
    EvictHolder {
        name: usize,
        shown: Shown,
        client: usize,
    },
    /// A detach that sets the end of a claim, and the time until it has ended on both stores.
    Expire {
        claim: usize,
        ttl_ms: u64,
    },
    List {
        client: usize,
    },
    /// Requests that are under way at the same time: any order of them may be the one in which the store decides.
    Together(Vec<Operation>),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { claim, proof, elsewhere, is_share_unknown } = self;
        write!(f, "t{claim}")?;
        match proof {
            Proof::First => {}
            Proof::None => write!(f, " (no fence)")?,
            Proof::Last => write!(f, " (last fence)")?,
            Proof::Above => write!(f, " (fence above)")?,
            Proof::Below => write!(f, " (fence below)")?,
            Proof::Older => write!(f, " (older fence)")?,
        }
        if let Some(elsewhere) = elsewhere {
            write!(f, " (shown at {})", name(*elsewhere))?;
        }
        if *is_share_unknown {
            write!(f, " (share unknown)")?;
        }
        Ok(())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Acquire { claim, waiting, client } => {
                let waiting = match waiting {
                    Waiting::Never => "does not wait",
                    Waiting::Briefly => "waits briefly",
                    Waiting::Forever => "waits",
                };
                write!(f, "c{client}: acquire t{claim}, {waiting}")
            }
            Operation::Release { shown, client } => write!(f, "c{client}: release {shown}"),
            Operation::Renew { shown, ttl_s, client } => {
                write!(f, "c{client}: renew {} for {ttl_s} s", list(shown))
            }
            Operation::Detach { shown, ttl_s, client } => {
                write!(f, "c{client}: detach {shown} for {ttl_s} s")
            }
            Operation::Convert { shown, to, client } => {
                write!(f, "c{client}: convert {shown} to {}", share(*to))
            }
            Operation::Evict { name: at, client } => write!(f, "c{client}: evict {}", name(*at)),
            Operation::EvictHolder { name: at, shown, client } => {
                write!(f, "c{client}: evict {shown} from {}", name(*at))
            }
            Operation::Expire { claim, ttl_ms } => write!(f, "t{claim} expires in {ttl_ms} ms"),
            Operation::List { client } => write!(f, "c{client}: list"),
            Operation::Together(operations) => write!(f, "together [{}]", list(operations)),
        }
    }
}
