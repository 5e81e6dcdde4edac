//! The rules of the rate limits, for stores that keep their values as bytes.
//!
//! A rate limit has a clock of its own, `ahead_us` ahead of the store's. If the store's clock is
//! set back, the limit's goes on from the last write. So nothing is forgotten too early, and no
//! client is refused for longer than a period. Numbers have a fixed width, so that
//! `scripts/rate_*.lua` find them without parsing the rest.

use std::time::Duration;

use super::limit::{Algorithm, Limit, Taken};

pub(crate) struct There<'a> {
    pub(crate) value: &'a [u8],
    /// The time until it expires; `None` if it never does.
    pub(crate) left: Option<Duration>,
}

pub(crate) struct Decided {
    pub(crate) taken: Taken,
    /// The value to store from now on, and for how long; `None` if nothing changes.
    pub(crate) write: Option<(Vec<u8>, Duration)>,
}

/// The stored value belongs to something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoLimit;

/// The widths of the numbers in the stored value.
const TIME: usize = 16;
const COUNT: usize = 10;

pub(crate) fn decide(
    limit: &Limit,
    weight: u32,
    there: Option<There<'_>>,
    clock_us: u64,
) -> Result<Decided, NoLimit> {
    match limit.algorithm() {
        Algorithm::FixedWindow => fixed(limit, weight, there),
        Algorithm::SlidingWindow => sliding(limit, weight, there, clock_us),
        Algorithm::Gcra { .. } => gcra(limit, weight, there, clock_us),
    }
}

/// Decides by a number that ends with its window.
fn fixed(limit: &Limit, weight: u32, there: Option<There<'_>>) -> Result<Decided, NoLimit> {
    let period = limit.period();
    let (used, left) = match &there {
        Some(there) => (number(there.value)?, there.left),
        None => (0, Some(period)),
    };
    // Another program has removed the expiry, or the clock was set back.
    let is_odd = left.is_none_or(|left| left > period);
    let left = if is_odd { period } else { left.unwrap_or(period) };
    let left_us = micros(left);
    let sum = used + u64::from(weight);
    if sum > u64::from(limit.max()) {
        let write = there.filter(|_| is_odd).map(|there| (there.value.to_vec(), left));
        return Ok(Decided { taken: limit.taken(false, used, left_us, left_us), write });
    }
    let write = Some((sum.to_string().into_bytes(), left));
    Ok(Decided { taken: limit.taken(true, sum, 0, left_us), write })
}

/// The takes of one period, in groups. A group counts from its last take.
struct Log {
    ahead_us: u64,
    used: u64,
    /// The time of the first take in the last group.
    since_us: u64,
    /// The time and the weight of each.
    groups: Vec<(u64, u64)>,
}

fn sliding(limit: &Limit, weight: u32, there: Option<There<'_>>, clock_us: u64) -> Result<Decided, NoLimit> {
    let mut log = match there {
        Some(there) => Log::parse(there.value)?,
        None => Log { ahead_us: 0, used: 0, since_us: 0, groups: Vec::new() },
    };
    let last_us = log.groups.last().map_or(0, |(at_us, _)| *at_us);
    let (now_us, is_back) = now(clock_us, &mut log.ahead_us, last_us);
    let left_us = |at_us: u64| (at_us + limit.period_us()).saturating_sub(now_us);
    let ended = log.groups.iter().take_while(|(at_us, _)| left_us(*at_us) == 0).count();
    for (_, gone) in log.groups.drain(..ended) {
        log.used = log.used.saturating_sub(gone);
    }
    let kept_for = limit.period() + Duration::from_millis(1);
    let sum = log.used + u64::from(weight);
    if sum > u64::from(limit.max()) {
        let (mut missing, mut retry_us) = (sum - u64::from(limit.max()), 0);
        for (at_us, gone) in &log.groups {
            retry_us = left_us(*at_us);
            missing = missing.saturating_sub(*gone);
            if missing == 0 {
                break;
            }
        }
        let reset_us = log.groups.last().map_or(0, |(at_us, _)| left_us(*at_us));
        let write = is_back.then(|| (log.written(), kept_for));
        return Ok(Decided { taken: limit.taken(false, log.used, retry_us, reset_us), write });
    }
    log.used = sum;
    match log.groups.last_mut() {
        Some(group) if now_us.saturating_sub(log.since_us) < limit.apart_us() => {
            *group = (now_us, group.1 + u64::from(weight));
        }
        _ => {
            log.since_us = now_us;
            log.groups.push((now_us, u64::from(weight)));
        }
    }
    let taken = limit.taken(true, sum, 0, limit.period_us());
    Ok(Decided { taken, write: Some((log.written(), kept_for)) })
}

impl Log {
    const HEAD: usize = TIME + COUNT + TIME;

    fn parse(value: &[u8]) -> Result<Self, NoLimit> {
        let (head, groups) = value.split_at_checked(Log::HEAD).ok_or(NoLimit)?;
        if groups.is_empty() || groups.len() % (TIME + COUNT) != 0 {
            return Err(NoLimit);
        }
        let groups = groups.chunks(TIME + COUNT).map(|group| {
            let (at_us, weight) = group.split_at(TIME);
            Ok((number(at_us)?, number(weight)?))
        });
        Ok(Log {
            ahead_us: number(&head[..TIME])?,
            used: number(&head[TIME..TIME + COUNT])?,
            since_us: number(&head[TIME + COUNT..])?,
            groups: groups.collect::<Result<_, _>>()?,
        })
    }

    fn written(&self) -> Vec<u8> {
        let Log { ahead_us, used, since_us, groups } = self;
        let mut text = format!("{ahead_us:0TIME$}{used:0COUNT$}{since_us:0TIME$}");
        for (at_us, weight) in groups {
            text.push_str(&format!("{at_us:0TIME$}{weight:0COUNT$}"));
        }
        text.into_bytes()
    }
}

/// Decides by the time until all takes have run off.
fn gcra(limit: &Limit, weight: u32, there: Option<There<'_>>, clock_us: u64) -> Result<Decided, NoLimit> {
    let [mut ahead_us, last_us, full_ns] = match there {
        Some(there) if there.value.len() == 3 * TIME => {
            let at = |place: usize| number(&there.value[place * TIME..][..TIME]);
            [at(0)?, at(1)?, at(2)?]
        }
        Some(_) => return Err(NoLimit),
        None => [0; 3],
    };
    let (now_us, is_back) = now(clock_us, &mut ahead_us, last_us);
    let full_ns = full_ns.saturating_sub((now_us - last_us).saturating_mul(1_000));
    let (sum_ns, most_ns) = (full_ns + limit.cost_ns(weight), limit.cost_ns(limit.most()));
    let us = |ns: u64| ns.div_ceil(1_000);
    let written = |full_ns: u64| {
        let text = format!("{ahead_us:0TIME$}{now_us:0TIME$}{full_ns:0TIME$}");
        (text.into_bytes(), Duration::from_millis(full_ns.div_ceil(1_000_000) + 1))
    };
    Ok(match sum_ns > most_ns {
        true => Decided {
            taken: limit.taken(false, full_ns, us(sum_ns - most_ns), us(full_ns)),
            write: is_back.then(|| written(full_ns)),
        },
        false => Decided { taken: limit.taken(true, sum_ns, 0, us(sum_ns)), write: Some(written(sum_ns)) },
    })
}

/// Returns the limit's own time, and whether the store's clock was set back since the last write.
fn now(clock_us: u64, ahead_us: &mut u64, last_us: u64) -> (u64, bool) {
    let now_us = clock_us + *ahead_us;
    if now_us >= last_us {
        return (now_us, false);
    }
    *ahead_us = last_us - clock_us;
    (last_us, true)
}

/// Parses at most 16 digits, so that sums cannot overflow.
fn number(text: &[u8]) -> Result<u64, NoLimit> {
    if text.is_empty() || text.len() > TIME || !text.iter().all(u8::is_ascii_digit) {
        return Err(NoLimit);
    }
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(NoLimit)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
