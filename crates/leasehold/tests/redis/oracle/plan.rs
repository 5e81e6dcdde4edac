//! `Plan`: the names and claims of a sequence. They are made from its seed before its first operation.

use std::fmt;

use leasehold::{Capabilities, Permits, Share};
use leasehold_testkit::Dice;

/// How many clients a sequence has.
pub(super) const CLIENTS: usize = 3;

/// Far above the time that a sequence takes, and far from each other, so that a renewal which does nothing is seen.
pub(super) const TTLS_S: [u64; 3] = [300, 600, 900];

/// What one token asks for.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) client: usize,
    pub(super) names: Vec<usize>,
    pub(super) share: Share,
    pub(super) ttl_s: u64,
    pub(super) fences: u16,
    pub(super) is_detached: bool,
}

/// The names and claims of a sequence.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) names: usize,
    pub(super) requests: Vec<Request>,
    /// The shares that claims are converted to.
    pub(super) shares: Vec<Share>,
}

impl Plan {
    /// A plan within what the stores can do.
    pub(super) fn new(dice: &mut Dice, can: &Capabilities, requests: usize) -> Plan {
        let names = 1 + dice.below(3) as usize;
        let shares = shares(dice, can);
        let request = |_| {
            let (places, share) = (some_names(dice, names, can.several_names), *pick(dice, &shares));
            Request {
                client: dice.below(CLIENTS as u64) as usize,
                share: if places.len() > 1 { fair(share) } else { share },
                names: places,
                ttl_s: *pick(dice, &TTLS_S),
                fences: if can.fence_blocks && dice.below(3) == 0 { 1 + dice.below(16) as u16 } else { 1 },
                is_detached: dice.below(6) == 0,
            }
        };
        let requests = (0..requests).map(request).collect();
        Plan { names, requests, shares }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.names.iter().map(|at| name(*at)).collect();
        write!(f, "{}, {} of {}", share(self.share), names.join("+"), self.ttl_s)?;
        write!(f, " s, client c{}", self.client)?;
        if self.fences > 1 {
            write!(f, ", {} fences", self.fences)?;
        }
        if self.is_detached {
            write!(f, ", detached")?;
        }
        Ok(())
    }
}

/// One of several kinds of use, so that claims of a sequence often fit beside each other.
fn shares(dice: &mut Dice, can: &Capabilities) -> Vec<Share> {
    let mut kinds = vec![vec![Share::Exclusive]];
    if can.shared {
        kinds.push(vec![Share::Exclusive, Share::Shared, Share::Shared]);
    }
    if can.permits {
        let limit = 2 + dice.below(4) as u32;
        let of = |take: u32, limit: u32| Share::Permits(Permits::new(take.min(limit), limit).unwrap());
        let barging = |share| match share {
            Share::Permits(permits) => Share::Permits(permits.barging()),
            other => other,
        };
        let fair = vec![of(1, limit), of(2, limit), of(limit, limit)];
        let mixed: Vec<Share> = fair.iter().flat_map(|share| [*share, barging(*share)]).collect();
        // Each claim is judged by its own limit.
        let limits = vec![of(1, 1), of(1, 3), barging(of(2, 4)), of(3, 5), barging(of(1, 2))];
        kinds.extend([fair, mixed.clone(), limits.clone()]);
        let all = [kinds.concat(), mixed, limits].concat();
        kinds.push(all);
    }
    pick(dice, &kinds).clone()
}

/// The same share, without the right to pass others.
pub(super) fn fair(share: Share) -> Share {
    match share {
        Share::Permits(permits) => Share::Permits(Permits::new(permits.take(), permits.limit()).unwrap()),
        other => other,
    }
}

/// One name mostly, or some.
fn some_names(dice: &mut Dice, count: usize, can_be_several: bool) -> Vec<usize> {
    let mut names = vec![dice.below(count as u64) as usize];
    if can_be_several && dice.below(4) == 0 {
        names.extend((0..count).filter(|_| dice.below(2) == 0));
        names.sort_unstable();
        names.dedup();
    }
    names
}

pub(super) fn pick<'a, T>(dice: &mut Dice, from: &'a [T]) -> &'a T {
    &from[dice.below(from.len() as u64) as usize]
}

/// The name with this number, as a trace has it.
pub(super) fn name(number: usize) -> String {
    ["a", "b", "c"][number].to_owned()
}

/// A share, as a trace has it.
pub(super) fn share(share: Share) -> String {
    match share {
        Share::Exclusive => "exclusive".to_owned(),
        Share::Shared => "shared".to_owned(),
        Share::Permits(permits) => {
            let barging = if permits.is_barging() { " barging" } else { "" };
            format!("{}/{}{barging}", permits.take(), permits.limit())
        }
    }
}

pub(super) fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
