//! Values: conditional writes and changes in one step, with an end, a fence and watchers.

use std::time::Duration;

use futures_util::future::join_all;

use super::Trial;
use super::retrying_client::{RetryingClient, ok};
use crate::cells::store::{CellStore, Changed, Kept, Key, Kind, Put, When, Write, Written};
use crate::error::Error;
use crate::fence::Fence;
use crate::store::Capabilities;
use crate::ttl::Ttl;

cases! {
    a_value_is_what_was_written_last: AtomicOrNothing, has_cells;
    a_condition_that_does_not_hold_changes_nothing: AtomicOrNothing, has_cells;
    of_many_who_write_where_nothing_is_one_does: AtomicOrNothing, has_cells;
    of_many_who_replace_the_same_value_one_does: AtomicOrNothing, has_cells;
    a_value_ends_with_its_time_and_not_before: AtomicOrNothing, has_cells;
    what_is_added_by_many_adds_up: AtomicOrNothing, has_cells;
    a_number_keeps_the_end_it_was_made_with: AtomicOrNothing, has_cells;
    a_sum_that_does_not_fit_is_refused: BadInputClearError, has_cells;
    an_older_fence_does_not_write: FencesOnlyRise, has_cells;
    of_many_who_write_under_fences_the_highest_stays: FencesOnlyRise, has_cells;
    a_fence_is_remembered_beyond_its_value_and_not_for_ever: FencesOnlyRise, has_cells;
    a_change_is_of_what_was_looked_at_or_none: AtomicOrNothing, has_cells;
    what_many_change_by_looking_adds_up: AtomicOrNothing, has_cells;
    whoever_watches_a_value_hears_of_its_changes: AWaiterIsServed, has_cells;
    a_watch_sees_what_changed_before_it_began: AWaiterIsServed, has_cells;
}

pub(super) fn has_cells(can: &Capabilities) -> bool {
    can.cells
}

#[derive(Clone)]
pub(super) struct ValueClient {
    pub(super) client: RetryingClient,
    pub(super) key: Key,
    pub(super) ttl: Duration,
}

impl ValueClient {
    pub(super) async fn several<const N: usize>(t: &Trial<'_>, kind: Kind) -> [Self; N] {
        let ttl = t.subject.ttl();
        let clients = t.clients().await;
        clients.map(|client| ValueClient { key: Key::new(kind, client.name("x")), client, ttl })
    }

    pub(super) fn cells(&self) -> &dyn CellStore {
        self.client.store.cells().unwrap_or_else(|| panic!("it says that it keeps values"))
    }

    async fn kept(&self) -> Kept {
        ok(self.cells().read(&self.key).await).unwrap_or_else(|| panic!("it has just been written"))
    }

    async fn value(&self) -> Option<Vec<u8>> {
        ok(self.cells().read(&self.key).await).map(|kept| kept.value)
    }

    async fn write(&self, when: When, value: Option<&[u8]>) -> Written {
        self.write_for(when, value, None).await
    }

    async fn write_for(&self, when: When, value: Option<&[u8]>, time: Option<Duration>) -> Written {
        let ttl = time.map(|time| ok(Ttl::new(time)));
        ok(self.cells().write(&self.key, &Write { when, value: value.map(<[u8]>::to_vec), ttl }).await)
    }

    async fn remove(&self) {
        self.write(When::Always, None).await;
        assert_eq!(self.value().await, None, "it is removed");
    }
}

async fn a_value_is_what_was_written_last(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Cell).await;
    assert_eq!(b.value().await, None);
    let bytes: Vec<u8> = (0..=255).collect();
    for value in [&b"one"[..], b"", &bytes, b"two\nlines"] {
        assert_eq!(a.write(When::Always, Some(value)).await, Written::Written);
        assert_eq!(b.value().await.as_deref(), Some(value), "byte by byte");
    }
    // Another kind with the same name is another value, and so is a lock.
    let [other] = ValueClient::several(t, Kind::Latch).await;
    assert_eq!(other.value().await, None);
    let client = t.client().await;
    let ticket = client.hold(&["x"], crate::Share::Exclusive).await;
    assert_eq!(b.value().await.as_deref(), Some(&b"two\nlines"[..]));
    client.release(&ticket).await;
    a.remove().await;
    assert_eq!(
        a.write(When::Always, None).await,
        Written::Written,
        "there is nothing to remove, and that is fine"
    );
}

async fn a_condition_that_does_not_hold_changes_nothing(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Cell).await;
    assert_eq!(a.write(When::Is(b"old".to_vec()), Some(b"new")).await, Written::Not, "there is none");
    assert_eq!(a.write(When::Is(Vec::new()), Some(b"new")).await, Written::Not, "none is not an empty one");
    assert_eq!(a.write(When::Absent, Some(b"")).await, Written::Written);
    assert_eq!(b.write(When::Absent, Some(b"new")).await, Written::Not, "an empty one is one");
    assert_eq!(b.write(When::Is(Vec::new()), Some(b"old")).await, Written::Written);
    assert_eq!(b.write(When::Is(b"OLD".to_vec()), Some(b"new")).await, Written::Not);
    assert_eq!(b.write(When::Is(b"ol".to_vec()), None).await, Written::Not);
    assert_eq!(a.value().await.as_deref(), Some(&b"old"[..]));
    assert_eq!(a.write(When::Is(b"old".to_vec()), None).await, Written::Written);
    assert_eq!(b.value().await, None);
}

async fn of_many_who_write_where_nothing_is_one_does(t: &Trial<'_>) {
    let pens: [_; 8] = ValueClient::several(t, Kind::Cell).await;
    let written = join_all(pens.iter().enumerate().map(|(number, pen)| async move {
        let value = number.to_string();
        (value.clone(), pen.write(When::Absent, Some(value.as_bytes())).await)
    }));
    let written = written.await;
    let won: Vec<_> = written.iter().filter(|(_, written)| *written == Written::Written).collect();
    assert_eq!(won.len(), 1, "{written:?}");
    assert_eq!(pens[0].value().await.as_deref(), Some(won[0].0.as_bytes()));
    pens[0].remove().await;
}

async fn of_many_who_replace_the_same_value_one_does(t: &Trial<'_>) {
    let pens: [_; 8] = ValueClient::several(t, Kind::Cell).await;
    pens[0].write(When::Always, Some(b"old")).await;
    let written = join_all(pens.iter().map(|pen| pen.write(When::Is(b"old".to_vec()), Some(b"new")))).await;
    let won = written.iter().filter(|written| **written == Written::Written).count();
    assert_eq!(won, 1, "{written:?}");
    pens[0].remove().await;
}

async fn a_value_ends_with_its_time_and_not_before(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Cell).await;
    let start = a.client.now();
    a.write_for(When::Always, Some(b"short"), Some(a.ttl)).await;
    let kept = b.kept().await;
    let left = kept.remaining.unwrap_or_else(|| panic!("it has an end"));
    assert!(left <= a.ttl && left > a.ttl / 2, "{left:?} of {:?}", a.ttl);
    while b.value().await.is_some() {
        b.client.sleep(a.ttl / 20).await;
    }
    let lasted = b.client.now().since(start);
    // A store counts on its own clock, in ms.
    assert!(lasted + Duration::from_millis(2) >= a.ttl, "{lasted:?} of {:?}", a.ttl);
    assert_eq!(b.write(When::Absent, Some(b"next")).await, Written::Written, "what has ended is not there");
    // A write without a TTL removes the end.
    a.write_for(When::Always, Some(b"short"), Some(a.ttl)).await;
    a.write(When::Always, Some(b"long")).await;
    let kept = b.kept().await;
    assert_eq!(kept.remaining, None);
    a.remove().await;
}

async fn what_is_added_by_many_adds_up(t: &Trial<'_>) {
    let pens: [_; 4] = ValueClient::several(t, Kind::Counter).await;
    let sums = join_all(pens.iter().map(|pen| async move {
        let mut sums = Vec::new();
        for by in [1, 10, -3, 0, 2] {
            sums.push(ok(pen.cells().add(&pen.key, by, None).await));
        }
        sums
    }));
    assert!(sums.await.iter().flatten().all(|sum| (0..=4 * 13).contains(sum)));
    assert_eq!(ok(pens[0].cells().add(&pens[0].key, 0, None).await), 4 * 10);
    assert_eq!(pens[1].value().await.as_deref(), Some(&b"40"[..]), "a number is its digits");
    pens[0].remove().await;
}

async fn a_number_keeps_the_end_it_was_made_with(t: &Trial<'_>) {
    let [pen] = ValueClient::several(t, Kind::Counter).await;
    let ttl = ok(Ttl::new(pen.ttl));
    assert_eq!(ok(pen.cells().add(&pen.key, 1, Some(ttl)).await), 1);
    let start = pen.client.now();
    let mut last = 1;
    // Additions do not move the end.
    while last != 1 || pen.client.now().since(start) < pen.ttl / 2 {
        pen.client.sleep(pen.ttl / 20).await;
        let sum = ok(pen.cells().add(&pen.key, 1, Some(ttl)).await);
        assert!(sum == last + 1 || sum == 1, "{sum} after {last}");
        last = sum;
        assert!(pen.client.now().since(start) < pen.ttl * 3, "it never ends");
    }
    pen.remove().await;
    assert_eq!(ok(pen.cells().add(&pen.key, 5, None).await), 5);
    let kept = pen.kept().await;
    assert_eq!(kept.remaining, None);
    pen.remove().await;
}

async fn a_sum_that_does_not_fit_is_refused(t: &Trial<'_>) {
    let [pen] = ValueClient::several(t, Kind::Counter).await;
    let refused = async |by| match pen.cells().add(&pen.key, by, None).await {
        Err(Error::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(ok(pen.cells().add(&pen.key, i64::MAX, None).await), i64::MAX);
    assert!(refused(1).await.contains("more than"));
    assert_eq!(ok(pen.cells().add(&pen.key, 0, None).await), i64::MAX, "nothing has changed");
    assert_eq!(ok(pen.cells().add(&pen.key, i64::MIN, None).await), -1);
    pen.write(When::Always, Some(b"seven")).await;
    assert!(refused(1).await.contains("is no number"));
    assert_eq!(pen.value().await.as_deref(), Some(&b"seven"[..]));
    pen.remove().await;
}

fn fenced(number: u64, kept_for: Duration) -> When {
    When::Fenced { fence: ok(Fence::new(number)), kept_for: ok(Ttl::new(kept_for)) }
}

fn stale(by: u64) -> Written {
    Written::Stale(ok(Fence::new(by)))
}

async fn an_older_fence_does_not_write(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Cell).await;
    let under = |number| fenced(number, a.ttl);
    assert_eq!(a.write(under(5), Some(b"five")).await, Written::Written);
    assert_eq!(b.write(under(7), Some(b"seven")).await, Written::Written);
    assert_eq!(a.write(under(5), Some(b"late")).await, stale(7), "and it hears of whom");
    assert_eq!(a.write(under(6), None).await, stale(7), "what removes is a write too");
    assert_eq!(b.value().await.as_deref(), Some(&b"seven"[..]), "nothing has changed");
    assert_eq!(b.write(under(7), Some(b"again")).await, Written::Written, "the same holder writes twice");
    assert_eq!(b.write(under(8), None).await, Written::Written);
    assert_eq!(a.write(under(7), Some(b"late")).await, stale(8), "though there is no value");
    assert_eq!(a.value().await, None);
    // A write without a fence is not stopped, and does not change the fence.
    assert_eq!(a.write(When::Absent, Some(b"plain")).await, Written::Written);
    assert_eq!(a.write(When::Always, Some(b"plain")).await, Written::Written);
    assert_eq!(a.write(under(7), Some(b"late")).await, stale(8));
    assert_eq!(b.value().await.as_deref(), Some(&b"plain"[..]));
    // Fences compare as numbers, to the last digit: 2^53 and 2^53 + 1 differ, and 10 is above 9.
    let edge = 1 << 53;
    for (low, high) in [(9, 10), (edge, edge + 1), (Fence::MAX - 1, Fence::MAX)] {
        assert_eq!(a.write(under(high), Some(b"high")).await, Written::Written);
        assert_eq!(b.write(under(low), Some(b"low")).await, stale(high));
    }
    a.remove().await;
}

async fn of_many_who_write_under_fences_the_highest_stays(t: &Trial<'_>) {
    let pens: [_; 8] = ValueClient::several(t, Kind::Cell).await;
    let written = join_all(pens.iter().zip(1..).map(|(pen, number)| async move {
        // Some start later, so that each order occurs now and then.
        for _ in 0..(number * 7) % 5 {
            tokio::task::yield_now().await;
        }
        pen.write(fenced(number, pen.ttl), Some(number.to_string().as_bytes())).await
    }))
    .await;
    assert_eq!(written[7], Written::Written, "nobody is above it");
    assert!(written.iter().all(|written| *written != Written::Not), "{written:?}");
    assert_eq!(pens[0].value().await.as_deref(), Some(&b"8"[..]), "{written:?}");
    pens[0].remove().await;
}

async fn a_fence_is_remembered_beyond_its_value_and_not_for_ever(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Cell).await;
    let (short, long) = (a.ttl / 5, a.ttl);
    let (tries, pause) = (200, a.ttl / 20);
    // The value ends by its TTL, by a removal with the fence, and by one without. The fence stays.
    for end in 0..3 {
        let ttl = (end == 0).then_some(short);
        let start = a.client.now();
        assert_eq!(a.write_for(fenced(9, long), Some(b"nine"), ttl).await, Written::Written);
        match end {
            0 => {
                while b.value().await.is_some() {
                    a.client.sleep(pause / 2).await;
                }
            }
            1 => drop(a.write(fenced(9, long), None).await),
            _ => a.remove().await,
        }
        // Then the fence ends too, so that an unused value leaves nothing behind.
        let mut refused = 0;
        while b.write(fenced(7, Duration::from_millis(10)), Some(b"seven")).await == stale(9) {
            refused += 1;
            assert!(refused < tries, "it is remembered for ever");
            assert_eq!(b.value().await, None);
            a.client.sleep(pause).await;
        }
        assert!(refused > 0, "the value has gone, and its fence with it");
        let least = long + ttl.unwrap_or_default();
        let lasted = a.client.now().since(start);
        assert!(lasted + Duration::from_millis(2) >= least, "{lasted:?} of {least:?}");
        // A fence that is kept for a very short time makes room for the next one.
        b.remove().await;
        a.client.sleep(pause).await;
    }
}

async fn a_change_is_of_what_was_looked_at_or_none(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Cell).await;
    let put = |value: Option<&[u8]>| Some(Put { value: value.map(<[u8]>::to_vec), ttl: None });
    let change = async |seen: Option<&[u8]>, next: Option<Put>| {
        let mut looks = 0;
        let mut plan = |there: Option<&[u8]>| {
            assert_eq!(there, seen);
            looks += 1;
            next.clone()
        };
        let changed = ok(a.cells().change(&a.key, &mut plan).await);
        assert_eq!(looks, 1, "it is asked once");
        changed
    };
    assert_eq!(change(None, None).await, Changed::Left);
    assert_eq!(b.value().await, None);
    assert_eq!(change(None, put(Some(b""))).await, Changed::Written);
    assert_eq!(change(Some(b""), put(Some(b"one"))).await, Changed::Written);
    assert_eq!(change(Some(b"one"), None).await, Changed::Left);
    assert_eq!(b.value().await.as_deref(), Some(&b"one"[..]));
    assert_eq!(change(Some(b"one"), put(None)).await, Changed::Written);
    assert_eq!(b.value().await, None);
    // A change sets the end too.
    let short = Some(Put { value: Some(b"short".to_vec()), ttl: Some(ok(Ttl::new(a.ttl))) });
    assert_eq!(change(None, short).await, Changed::Written);
    let kept = b.kept().await;
    assert!(kept.remaining.is_some_and(|left| left <= a.ttl));
    // A change keeps the fence.
    a.write(fenced(9, a.ttl), Some(b"nine")).await;
    assert_eq!(change(Some(b"nine"), put(Some(b"ten"))).await, Changed::Written);
    assert_eq!(b.write(fenced(8, a.ttl), Some(b"late")).await, stale(9));
    a.remove().await;
}

async fn what_many_change_by_looking_adds_up(t: &Trial<'_>) {
    let pens: [_; 4] = ValueClient::several(t, Kind::Cell).await;
    join_all(pens.iter().map(|pen| async move {
        let mut left = 10;
        while left > 0 {
            let mut plan = |there: Option<&[u8]>| {
                let number = String::from_utf8_lossy(there.unwrap_or(b"0"));
                let number: u32 =
                    number.parse().unwrap_or_else(|_| panic!("{number} is no number of this case"));
                Some(Put { value: Some((number + 1).to_string().into_bytes()), ttl: None })
            };
            match ok(pen.cells().change(&pen.key, &mut plan).await) {
                Changed::Written => left -= 1,
                Changed::Overtaken => tokio::task::yield_now().await,
                Changed::Left => panic!("it wanted a change"),
            }
        }
    }))
    .await;
    assert_eq!(pens[0].value().await.as_deref(), Some(&b"40"[..]));
    pens[0].remove().await;
}

async fn whoever_watches_a_value_hears_of_its_changes(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Cell).await;
    // Created, changed, removed, each with two watchers, one of them a client that also writes.
    let (one, two) = (Some(&b"one"[..]), Some(&b"two"[..]));
    let steps = [(None, one), (one, two), (two, None)];
    for (known, next) in steps {
        let watching: Vec<_> = [a.clone(), b.clone()]
            .into_iter()
            .map(|pen| {
                let known = known.map(<[u8]>::to_vec);
                tokio::spawn(async move {
                    // A watch may end without a change, so the watcher reads again.
                    while pen.value().await == known {
                        let until = pen.client.now().plus(pen.ttl * 10);
                        ok(pen.cells().changed(&pen.key, known.as_deref(), until).await);
                        assert!(pen.client.now() < until, "nobody heard of it");
                    }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        a.write(When::Always, next).await;
        for watching in watching {
            watching.await.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

async fn a_watch_sees_what_changed_before_it_began(t: &Trial<'_>) {
    let [a, b] = ValueClient::several(t, Kind::Cell).await;
    a.write(When::Always, Some(b"new")).await;
    let until = b.client.now().plus(b.ttl * 10);
    ok(b.cells().changed(&b.key, None, until).await);
    ok(b.cells().changed(&b.key, Some(b"old"), until).await);
    assert!(b.client.now() < until, "there was nothing to wait for");
    // A watch without a change ends at its deadline.
    let until = b.client.now().plus(b.ttl / 10);
    ok(b.cells().changed(&b.key, Some(b"new"), until).await);
    assert!(b.client.now() >= until, "nothing has changed");
    // An expiry is a change too.
    a.write_for(When::Always, Some(b"short"), Some(a.ttl / 5)).await;
    let until = b.client.now().plus(b.ttl * 10);
    while b.value().await.is_some() {
        ok(b.cells().changed(&b.key, Some(b"short"), until).await);
        assert!(b.client.now() < until, "it has ended, and nobody said so");
    }
}
