//! The table of cancellable operations, and a test that cancels each at every await point.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold::{Detached, Error, Lease, Locks, Loss, Store};

use super::{ms, secs, within};

/// Two clients of one store. An operation of `a` is cancelled.
pub struct Actors {
    pub store: Arc<dyn Store>,
    pub a: Locks,
    pub b: Locks,
    /// The time that another holder keeps the lock.
    pub held_for: Duration,
    /// The TTL of a lease that is lost: the loss is seen after a third of it.
    pub ttl: Duration,
}

/// The point at which an operation is cancelled.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    Polls(usize),
    /// While requests and replies are under way.
    After(Duration),
}

impl Cut {
    async fn off<T>(self, actors: &Actors, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Cut::Polls(polls) => polled(polls, future).await,
            Cut::After(after) => within(actors.store.clock(), after, future).await,
        }
    }
}

/// Drops a future after this many polls.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // No wake-up may follow the last poll, so the future is dropped now.
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Cancels an operation after 0, 1, 2, … polls, and after `delay(0)`, `delay(1)`, …, until it
/// completes. Returns the number of attempts.
pub fn at_every_await_point(
    what: &str,
    delay: impl Fn(usize) -> Duration,
    attempt: impl Fn(Cut) -> bool,
) -> usize {
    let mut points = 0;
    let mut until_through = |cut: &dyn Fn(usize) -> Cut| {
        for point in 0.. {
            assert!(point < 100_000, "{what} never gets through");
            points += 1;
            let attempted = catch_unwind(AssertUnwindSafe(|| attempt(cut(point))));
            let finished = attempted.unwrap_or_else(|_| panic!("{what} fails, cut off at {:?}", cut(point)));
            if finished {
                return point;
            }
        }
        0
    };
    assert!(until_through(&Cut::Polls) > 0, "{what} is through without a poll");
    until_through(&|point| Cut::After(delay(point)));
    points
}

type Attempted<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

/// Returns true if the operation completes before the cut.
pub type Operation = for<'a> fn(&'a Actors, Cut) -> Attempted<'a>;

macro_rules! operations {
    (|$it:ident, $cut:ident| $($what:literal => $attempt:expr;)*) => {
        pub const OPERATIONS: &[(&str, Operation)] =
            &[$(($what, |$it, $cut| Box::pin(async move { $attempt }))),*];
    };
}

operations! { |it, cut|
    "lock" => cut.off(it, it.a.mutex("x").lock()).await.is_some();
    "try_lock" => cut.off(it, it.a.mutex("x").try_lock()).await.is_some();
    "lock behind another client" => behind(it, cut, &it.b, it.a.mutex("x").lock()).await;
    "lock behind a local task" => behind(it, cut, &it.a, it.a.mutex("x").lock()).await;
    "lock with a wait" => behind(it, cut, &it.b, it.a.mutex("x").wait(it.held_for / 2).lock()).await;
    "lock in strict order" => behind(it, cut, &it.b, it.a.mutex("x").strict_order().lock()).await;
    "read behind a writer" => behind(it, cut, &it.b, it.a.rwlock("x").read()).await;
    "write behind a reader" => {
        let reader = it.b.rwlock("x").read().await.unwrap();
        let waiting = async { cut.off(it, it.a.rwlock("x").write()).await.is_some() };
        let_go_while(it, reader, waiting).await
    };
    "acquire behind other permits" => {
        let taken = it.b.semaphore("x", 3).acquire_many(2).await.unwrap();
        let waiting = async { cut.off(it, it.a.semaphore("x", 3).acquire_many(2)).await.is_some() };
        let_go_while(it, taken, waiting).await
    };
    "all of several names" => cut.off(it, it.a.all(["x", "y", "z"]).lock()).await.is_some();
    // A store that acquires one by one holds the first while it waits for the second.
    "all of several names behind another client" => {
        let lease = it.b.mutex("y").lock().await.unwrap();
        let waiting = async { cut.off(it, it.a.all(["z", "y", "x"]).lock()).await.is_some() };
        let_go_while(it, lease, waiting).await
    };
    "release of several names" => {
        let lease = it.a.all(["x", "y"]).lock().await.unwrap();
        ended(it, cut, lease, Lease::release).await.is_some()
    };
    "lock of an owner behind another client" => behind(it, cut, &it.b, it.a.owner("me").mutex("x").lock()).await;
    "the last one out of an owner's" => {
        let mutex = it.a.owner("me").mutex("x");
        let (one, two) = (mutex.lock().await.unwrap(), mutex.lock().await.unwrap());
        one.release().await.unwrap();
        let proof = two.proof();
        let finished = cut.off(it, two.release()).await;
        assert_eq!(proof.loss(), Some(Loss::Released));
        finished.is_some()
    };
    "a run once in a period" => {
        let has_ended = Cell::new(false);
        let work = async |_| {
            tokio::time::sleep(ms(1)).await;
            has_ended.set(true);
        };
        let is_through = cut.off(it, it.a.once("x").per(secs(60)).run(work)).await.is_some();
        // Work that has ended counts, also if the cut came before its record.
        if has_ended.get() {
            it.b.evict("x").await.unwrap();
        }
        is_through
    };
    "a campaign behind another client" => behind(it, cut, &it.b, it.a.election("x").campaign()).await;
    "the first of two waiters" => while_held(it, &it.b, the_first_of_two_waiters(it, cut)).await;
    "lock_detached" => and_back(cut.off(it, it.a.mutex("x").lock_detached()).await).await;
    "lock_detached behind another client" => {
        while_held(it, &it.b, async move {
            and_back(cut.off(it, it.a.mutex("x").lock_detached()).await).await
        }).await
    };
    // Every grant is valid for less than this, so the client renews it first, or releases it.
    "lock_detached with a renewal" => {
        let mutex = it.a.mutex("x").ttl(secs(1)).min_validity(ms(988));
        and_back(cut.off(it, mutex.lock_detached()).await).await
    };
    "release of a detached lease" => {
        let lease = it.a.mutex("x").lock_detached().await.unwrap();
        let again = it.b.detached("x", lease.token().clone()).unwrap();
        let finished = cut.off(it, lease.release()).await;
        if matches!(cut, Cut::Polls(0)) {
            again.release().await.expect("nothing was sent, so nothing has happened");
        }
        finished.is_some()
    };
    "detach" => {
        let lease = it.a.mutex("x").lock().await.unwrap();
        and_back(ended(it, cut, lease, |lease| lease.detach(secs(60))).await).await
    };
    "downgrade" => {
        let writer = it.a.rwlock("x").write().await.unwrap();
        ended(it, cut, writer, Lease::downgrade).await.is_some()
    };
    "upgrade" => {
        let reader = it.a.rwlock("x").read().await.unwrap();
        ended(it, cut, reader, Lease::upgrade).await.is_some()
    };
    "upgrade beside a reader" => {
        let (reader, other) =
            (it.a.rwlock("x").read().await.unwrap(), it.b.rwlock("x").read().await.unwrap());
        let refused = cut.off(it, reader.upgrade()).await;
        assert!(other.is_valid());
        matches!(refused, Some(Ok(leasehold::Upgrade::Refused(lease))) if lease.is_valid())
    };
    "extend" => {
        let lease = it.a.mutex("x").lock().await.unwrap();
        let finished = cut.off(it, lease.extend(secs(60))).await;
        assert!(lease.is_valid());
        finished.is_some()
    };
    "release" => {
        let lease = it.a.mutex("x").lock().await.unwrap();
        ended(it, cut, lease, Lease::release).await.is_some()
    };
    "run" => {
        let work = it.a.mutex("x").run(|lease| async move {
            for _ in 0..3 {
                tokio::time::sleep(ms(1)).await;
            }
            lease.fence()
        });
        cut.off(it, work).await.is_some()
    };
    // The lease is lost, and the rollback is cancelled too.
    "run_or_rollback" => {
        let mutex = it.a.mutex("x").ttl(it.ttl);
        let work = mutex.run_or_rollback(
            |_| async {
                it.store.evict(&"x".parse().unwrap()).await.unwrap();
                tokio::time::sleep(secs(60)).await
            },
            |_| tokio::time::sleep(ms(3)),
        );
        cut.off(it, work).await.is_some_and(|end| end.is_err())
    };
    "close" => {
        let lease: Lease = it.a.mutex("x").lock().await.unwrap();
        let finished = cut.off(it, it.a.close()).await.is_some();
        if !matches!(cut, Cut::Polls(0)) {
            assert_eq!(lease.loss(), Some(Loss::Closed));
        }
        finished
    };
}

/// Ends a lease, which has ended also after a cut.
async fn ended<F: Future>(
    it: &Actors,
    cut: Cut,
    lease: Lease,
    end: impl Fn(Lease) -> F,
) -> Option<F::Output> {
    let proof = lease.proof();
    let output = cut.off(it, end(lease)).await;
    assert_eq!(proof.loss(), Some(Loss::Released));
    output
}

async fn behind<T>(it: &Actors, cut: Cut, holder: &Locks, waiting: impl Future<Output = T>) -> bool {
    while_held(it, holder, async { cut.off(it, waiting).await.is_some() }).await
}

async fn while_held(it: &Actors, holder: &Locks, waiting: impl Future<Output = bool>) -> bool {
    let lease = holder.mutex("x").lock().await.unwrap();
    let_go_while(it, lease, waiting).await
}

async fn let_go_while(it: &Actors, lease: Lease, waiting: impl Future<Output = bool>) -> bool {
    let (_, finished) = tokio::join!(
        async {
            tokio::time::sleep(it.held_for).await;
            lease.release().await.unwrap();
        },
        waiting
    );
    finished
}

/// The second waiter is served, also after a cut of the first.
async fn the_first_of_two_waiters(it: &Actors, cut: Cut) -> bool {
    let (mutex, other) = (it.a.mutex("x"), it.a.mutex("x"));
    let (first, ()) = tokio::join!(async { cut.off(it, mutex.lock()).await.is_some() }, async {
        let lease = tokio::time::timeout(secs(5), other.lock()).await.expect("the second is served");
        lease.unwrap().release().await.unwrap();
    });
    first
}

/// Releases a granted detached lease, so that any lease left in the store is due to the cut.
async fn and_back(taken: Option<Result<Detached, Error>>) -> bool {
    match taken {
        Some(Ok(lease)) => lease.release().await.is_ok(),
        Some(Err(error)) => matches!(error, Error::Late { .. }),
        None => false,
    }
}
