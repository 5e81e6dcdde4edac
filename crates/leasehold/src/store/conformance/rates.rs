//! Rate limits: never more than the limit in any period, and true answers about the rest.

use std::time::Duration;

use futures_util::future::join_all;

use super::Trial;
use super::cells::{ValueClient, has_cells};
use super::retrying_client::ok;
use crate::cells::rate::{Algorithm, Limit, Taken};
use crate::cells::store::{Key, Kind};
use crate::clock::Deadline;
use crate::name::Name;

cases! {
    of_many_who_take_only_so_many_are_allowed: AtomicOrNothing, has_cells;
    no_period_has_more_than_its_maximum: AtomicOrNothing, has_cells;
    what_is_told_of_a_limit_is_true: AtomicOrNothing, has_cells;
    a_heavy_take_is_taken_whole_or_not_at_all: AtomicOrNothing, has_cells;
    each_take_is_judged_by_its_own_maximum: AtomicOrNothing, has_cells;
    limits_of_other_rules_and_periods_count_apart: AtomicOrNothing, has_cells;
    a_limit_that_nobody_uses_leaves_nothing: AtomicOrNothing, has_cells;
}

impl ValueClient {
    async fn take(&self, limit: &Limit, weight: u32) -> Taken {
        ok(limit.check(weight));
        ok(self.cells().take(&self.key, limit, weight).await)
    }
}

fn limit(algorithm: Algorithm, max: u32, period: Duration) -> Limit {
    ok(Limit::new(algorithm, max, period))
}

async fn of_many_who_take_only_so_many_are_allowed(t: &Trial<'_>) {
    let taps: [_; 4] = ValueClient::several(t, Kind::Rate).await;
    // Nothing comes back to these limits while this runs.
    let long = taps[0].ttl * 50;
    let limits = [
        limit(Algorithm::FixedWindow, 17, long),
        limit(Algorithm::SlidingWindow, 17, long),
        // Large enough that several takes are remembered together.
        limit(Algorithm::SlidingWindow, 120, long),
        limit(Algorithm::Gcra { burst: 17 }, 1, long),
    ];
    for limit in limits {
        let each = limit.most() / 2;
        // A limit that no other round uses.
        let limit = ok(Limit::new(
            limit.algorithm(),
            limit.max(),
            limit.period() + Duration::from_millis(limit.most().into()),
        ));
        let takes = taps.iter().map(|tap| async move {
            let mut allowed = 0;
            for _ in 0..each {
                allowed += u32::from(tap.take(&limit, 1).await.allowed);
            }
            allowed
        });
        let allowed: u32 = join_all(takes).await.into_iter().sum();
        assert_eq!(allowed, limit.most(), "{limit:?}");
        assert_eq!(taps[0].take(&limit, 1).await.remaining, 0);
    }
}

async fn no_period_has_more_than_its_maximum(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Rate).await;
    let period = a.ttl / 2;
    for (algorithm, max, most) in [
        (Algorithm::SlidingWindow, 8, 8),
        (Algorithm::SlidingWindow, 150, 150),
        (Algorithm::Gcra { burst: 1 }, 8, 8),
        (Algorithm::Gcra { burst: 4 }, 8, 8 + 4 - 1),
    ] {
        let limit = limit(algorithm, max, period);
        let start = a.client.now();
        // The times of each request and its answer. The take was in between.
        let mut taken: Vec<(Deadline, Deadline)> = Vec::new();
        let mut tries = 0_u32;
        while a.client.now().since(start) < period * 2 {
            let asked = a.client.now();
            let tap = if tries.is_multiple_of(2) { &a } else { &b };
            if tap.take(&limit, 1).await.allowed {
                taken.push((asked, a.client.now()));
            }
            tries += 1;
            // In bursts, since a steady stream is easy.
            if tries.is_multiple_of(max.min(25)) {
                a.client.sleep(period / 7).await;
            }
        }
        // A store's clock may show whole microseconds.
        let surely = period - Duration::from_micros(1);
        for (first, (asked, _)) in taken.iter().enumerate() {
            let within = taken[first..].iter().filter(|(_, answered)| answered.since(*asked) < surely);
            let within = within.count();
            assert!(within <= most, "{within} in one period: {limit:?}");
        }
        assert!(taken.len() > most, "{} in two periods: {limit:?}", taken.len());
    }
}

async fn what_is_told_of_a_limit_is_true(t: &Trial<'_>) {
    let [tap] = ValueClient::several(t, Kind::Rate).await;
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra { burst: 5 }] {
        let limit = limit(algorithm, 5, tap.ttl);
        for (weight, remaining) in [(1, 4), (2, 2)] {
            let taken = tap.take(&limit, weight).await;
            assert!(taken.allowed && taken.retry_after.is_zero(), "{taken:?}");
            // In an even flow, one may have come back meanwhile on a busy store.
            assert!((remaining..=remaining + 1).contains(&taken.remaining), "{algorithm:?}: {taken:?}");
            assert!(taken.reset_after <= tap.ttl + Duration::from_millis(2), "{taken:?}");
        }
        // A refusal says when to retry, and uses nothing.
        let asked = tap.client.now();
        let refused = tap.take(&limit, 5).await;
        if refused.allowed {
            // The request took so long that all has come back.
            continue;
        }
        let told = tap.client.now().plus(refused.retry_after);
        assert!(!refused.retry_after.is_zero(), "{algorithm:?}: {refused:?}");
        assert!(refused.retry_after <= tap.ttl + Duration::from_millis(2), "{algorithm:?}: {refused:?}");
        tap.client.sleep(refused.retry_after / 2).await;
        let again = tap.take(&limit, 5).await;
        if again.allowed {
            let after = tap.client.now().since(asked) + Duration::from_millis(2);
            assert!(after >= refused.retry_after, "{algorithm:?}: told {refused:?}, allowed after {after:?}");
            continue;
        }
        tap.client.store.clock().sleep_until(told.plus(Duration::from_millis(2))).await;
        let last = tap.take(&limit, 5).await;
        assert!(last.allowed, "{algorithm:?}: told {refused:?}, and then {last:?}");
        assert_eq!(last.remaining, 0);
    }
}

async fn a_heavy_take_is_taken_whole_or_not_at_all(t: &Trial<'_>) {
    let [tap] = ValueClient::several(t, Kind::Rate).await;
    let long = tap.ttl * 50;
    for (algorithm, max) in
        [(Algorithm::FixedWindow, 10), (Algorithm::SlidingWindow, 10), (Algorithm::Gcra { burst: 10 }, 1)]
    {
        let limit = limit(algorithm, max, long);
        assert_eq!(tap.take(&limit, 6).await.remaining, 4, "{algorithm:?}");
        let refused = tap.take(&limit, 5).await;
        assert_eq!((refused.allowed, refused.remaining), (false, 4), "{algorithm:?}");
        assert_eq!(tap.take(&limit, 4).await.remaining, 0, "{algorithm:?}");
        assert!(!tap.take(&limit, 1).await.allowed, "{algorithm:?}");
    }
}

async fn each_take_is_judged_by_its_own_maximum(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Rate).await;
    let long = a.ttl * 50;
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let [low, middle, high] = [5, 9, 200].map(|max| limit(algorithm, max, long));
        assert!(a.take(&middle, 8).await.allowed);
        let refused = b.take(&low, 1).await;
        assert_eq!((refused.allowed, refused.remaining), (false, 0), "{algorithm:?}: others took more");
        assert!(refused.retry_after <= long + Duration::from_millis(2));
        assert_eq!(b.take(&middle, 1).await.remaining, 0, "what was refused used nothing");
        assert_eq!(b.take(&high, 100).await.remaining, 91, "{algorithm:?}");
        assert!(!a.take(&middle, 1).await.allowed && !b.take(&low, 1).await.allowed);
    }
    // The flow counts in proportion: half of one limit is half of the other.
    let [slow, fast] =
        [(10, 1), (1_000, 100)].map(|(burst, max)| limit(Algorithm::Gcra { burst }, max, long));
    assert_eq!(a.take(&slow, 5).await.remaining, 5);
    assert!((499..=500).contains(&b.take(&fast, 1).await.remaining));
}

async fn limits_of_other_rules_and_periods_count_apart(t: &Trial<'_>) {
    let [tap] = ValueClient::several(t, Kind::Rate).await;
    let long = tap.ttl * 50;
    let rules = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra { burst: 1 }];
    for limit in rules.into_iter().flat_map(|rule| [limit(rule, 1, long), limit(rule, 1, long * 2)]) {
        assert!(tap.take(&limit, 1).await.allowed, "{limit:?}");
        assert!(!tap.take(&limit, 1).await.allowed, "{limit:?}");
    }
}

async fn a_limit_that_nobody_uses_leaves_nothing(t: &Trial<'_>) {
    let [tap] = ValueClient::several(t, Kind::Rate).await;
    let period = tap.ttl / 4;
    let rules = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra { burst: 3 }];
    let limits = rules.map(|rule| limit(rule, 3, period));
    for limit in limits {
        while tap.take(&limit, 1).await.allowed {}
    }
    let patience = tap.client.now().plus(period * 10);
    for limit in limits {
        let place = limit.place(&tap.key);
        let name = place.strip_prefix("rate:").unwrap_or(&place);
        let place = Key::new(Kind::Rate, ok(Name::new(name)));
        while ok(tap.cells().read(&place).await).is_some() {
            assert!(tap.client.now() < patience, "{place} is still there");
            tap.client.sleep(period / 10).await;
        }
    }
    // All comes back after at most a period, whatever the store shows of the values.
    tap.client.sleep(period + Duration::from_millis(2)).await;
    for limit in limits {
        assert_eq!(tap.take(&limit, 1).await.remaining, 2, "all is there again: {limit:?}");
    }
}
