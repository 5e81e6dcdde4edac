//! All local queues of a client: the head and the waiters of each, and how a lease is passed on.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::task::Waker;
use std::time::Duration;

use super::waiters::Waiters;
use crate::acquire::pending::PendingAcquire;
use crate::acquire::{Refusal, Request};
use crate::claim::Busy;
use crate::clock::{Clock, Deadline};
use crate::error::Error;
use crate::lease::Lease;
use crate::lease::state::LeaseState;
use crate::sync::{Arc, Mutex, lock};

/// The time for which a grant is passed on.
const PASS_FOR: Duration = Duration::from_millis(10);

pub(crate) struct LocalQueues {
    clock: Clock,
    /// With random keys, so that an attacker cannot choose names whose hashes collide.
    hasher: RandomState,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    queues: HashMap<Arc<Request>, Queue, BuildHasherDefault<StoredHash>>,
    /// The errors of waiters that were removed from their queue, until they are polled.
    failed: HashMap<u64, Error>,
    ids: u64,
    closed: bool,
}

/// Invariants:
/// - a queue is in the map while its head is not idle, or the renewal task is going to check it;
/// - the head is not among the waiters;
/// - a queue with an idle head has no waiters;
/// - a waiter that becomes the head is woken.
struct Queue {
    head: Head,
    waiters: Waiters,
    /// The renewal task is going to check it.
    is_checked: bool,
}

enum Head {
    /// No request and no lease.
    Idle,
    /// The waiter `id` polls the request.
    Asking {
        id: u64,
        polled_at: Deadline,
        /// Kept between polls, to wake a head that was not polled for a TTL.
        waker: Option<Waker>,
        request: AskedRequest,
    },
    /// A task of this client holds the lease.
    Held(Arc<LeaseState>),
    /// The waiter `to` has not picked up the lease yet.
    Passing { to: u64, lease: Lease },
}

enum AskedRequest {
    NotMade,
    /// The head makes or polls it now, outside of the lock. It does not lose its place meanwhile.
    Polling,
    Made(PendingAcquire),
}

/// The state that a task finds in its queue.
pub(super) enum Turn {
    /// It waits. `to_check` is set once for each queue that the renewal task must check.
    Wait {
        to_check: bool,
    },
    /// It is the head and polls the request, or makes one.
    Ask {
        pending: Option<PendingAcquire>,
        waiters: usize,
    },
    Granted(Lease),
    /// It was the head, was not polled for too long, and lost its place.
    Revoked,
    Refused(Refusal),
}

impl LocalQueues {
    pub(crate) fn new(clock: Clock) -> Self {
        LocalQueues { clock, hasher: RandomState::new(), inner: Mutex::default() }
    }

    /// Hashes the shared parts of a request, once.
    pub(crate) fn hash(&self, request: &Request) {
        request.queue_hash.get_or_init(|| self.hasher.hash_one(request.shared_parts()));
    }

    /// Makes the task the head of an idle queue or, if it waits at all, a waiter.
    pub(super) fn enter(
        &self,
        request: &Arc<Request>,
        waits: bool,
        waker: &Waker,
        id: &mut Option<u64>,
    ) -> Turn {
        let mut inner = lock(&self.inner);
        let Inner { queues, ids, closed, .. } = &mut *inner;
        if *closed {
            return Turn::Refused(Error::Closed.into());
        }
        *ids += 1;
        match queues.get_mut(request) {
            None => {
                let queue = Queue { head: self.asking(*ids), waiters: Waiters::default(), is_checked: false };
                queues.insert(request.clone(), queue);
            }
            Some(queue) if matches!(queue.head, Head::Idle) => queue.head = self.asking(*ids),
            Some(queue) if waits => {
                *id = Some(*ids);
                queue.waiters.push(*ids, waker.clone());
                return Turn::Wait { to_check: !std::mem::replace(&mut queue.is_checked, true) };
            }
            Some(queue) => {
                let Some(held) = queue.head.lease().cloned() else {
                    return Turn::Refused(Refusal::AskDirectly);
                };
                let waiters = queue.waiters.len();
                drop(inner);
                return Turn::Refused(self.busy(&held, waiters));
            }
        }
        *id = Some(*ids);
        Turn::Ask { pending: None, waiters: 0 }
    }

    /// Returns a head that makes a request, and polls it, now.
    fn asking(&self, id: u64) -> Head {
        Head::Asking { id, polled_at: self.clock.now(), waker: None, request: AskedRequest::Polling }
    }

    /// Refuses a task that does not wait for a lease of this client.
    fn busy(&self, state: &Arc<LeaseState>, waiters: usize) -> Refusal {
        let now = self.clock.now();
        if state.loss_at(now).is_some() {
            return Refusal::AskDirectly;
        }
        let remaining = Some(state.remaining(now));
        Refusal::Busy(Busy { holder: Some(state.ticket.token.owner()), remaining, waiters })
    }

    pub(super) fn look(&self, request: &Request, me: u64, waker: &Waker) -> Turn {
        // Here and below, wakers and requests drop outside the lock: they may run foreign code.
        let mut _old_waker = None;
        let mut inner = lock(&self.inner);
        if let Some(queue) = inner.queues.get_mut(request) {
            match &mut queue.head {
                Head::Asking { id, polled_at, waker, request } if *id == me => {
                    *polled_at = self.clock.now();
                    _old_waker = waker.take();
                    let pending = match std::mem::replace(request, AskedRequest::Polling) {
                        AskedRequest::Made(pending) => Some(pending),
                        AskedRequest::NotMade | AskedRequest::Polling => None,
                    };
                    return Turn::Ask { pending, waiters: queue.waiters.len() };
                }
                Head::Passing { to, lease } if *to == me => {
                    let held = Head::Held(lease.state().clone());
                    if let Head::Passing { lease, .. } = std::mem::replace(&mut queue.head, held) {
                        return Turn::Granted(lease);
                    }
                }
                _ => {}
            }
            if let Some(place) = queue.waiters.get_mut(me) {
                if !place.will_wake(waker) {
                    _old_waker = Some(std::mem::replace(place, waker.clone()));
                }
                return Turn::Wait { to_check: false };
            }
        }
        inner.failed.remove(&me).map_or(Turn::Revoked, |error| Turn::Refused(error.into()))
    }

    /// Stores the request that the head has polled and that is not answered yet.
    pub(super) fn put_back(&self, request: &Request, me: u64, pending: PendingAcquire, by: &Waker) {
        let mut inner = lock(&self.inner);
        let head = inner.queues.get_mut(request).map(|queue| &mut queue.head);
        if let Some(Head::Asking { id, polled_at, waker, request }) = head
            && *id == me
        {
            *polled_at = self.clock.now();
            *request = AskedRequest::Made(pending);
            *waker = Some(by.clone());
        }
    }

    /// Records that the head's request was granted.
    pub(super) fn granted(&self, request: &Request, me: u64, state: &Arc<LeaseState>) {
        let mut inner = lock(&self.inner);
        if let Some(queue) = inner.queues.get_mut(request)
            && matches!(queue.head, Head::Asking { id, .. } if id == me)
        {
            queue.head = Head::Held(state.clone());
        }
        drop(inner);
        // If the lease was lost before it was in the queue, its end did not wake the next waiter.
        if state.end_reason().is_some() {
            self.vacate(state);
        }
    }

    /// Removes a task without a lease. The next waiter takes over its request or its lease.
    pub(super) fn leave(&self, request: &Request, me: u64) {
        let mut inner = lock(&self.inner);
        inner.failed.remove(&me);
        let Some(queue) = inner.queues.get_mut(request) else { return };
        let mut _removed = None;
        match &mut queue.head {
            Head::Asking { id, request: asked, .. } if *id == me => {
                let asked = match std::mem::replace(asked, AskedRequest::NotMade) {
                    // The next waiter makes a request of its own that waits.
                    AskedRequest::Made(pending) if !pending.waits() => {
                        _removed = Some(pending);
                        AskedRequest::NotMade
                    }
                    AskedRequest::Polling => AskedRequest::NotMade,
                    asked => asked,
                };
                let next = inner.next_asks(request, asked, self.clock.now());
                drop(inner);
                next.wake();
            }
            Head::Passing { to, lease } if *to == me => {
                let held = Head::Held(lease.state().clone());
                let passing = std::mem::replace(&mut queue.head, held);
                drop(inner);
                if let Head::Passing { mut lease, .. } = passing {
                    self.pass(&mut lease, self.clock.now());
                }
            }
            _ => {
                let waker = queue.waiters.remove(me);
                drop(inner);
                drop(waker);
            }
        }
    }

    /// Fails every task of the queue with the error of its request: each would get the same one.
    pub(super) fn fail(&self, request: &Request, me: u64, error: &Error) {
        let mut inner = lock(&self.inner);
        let Some(queue) = inner.queues.get_mut(request) else { return };
        if matches!(queue.head, Head::Asking { id, .. } if id == me) {
            let waiters = std::mem::take(&mut queue.waiters);
            let wakers = inner.refuse(waiters, error);
            drop(inner);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Refuses all waiters, and every later task. The heads that poll a request are refused by it.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        let waiters: Vec<Waiters> =
            inner.queues.values_mut().map(|queue| std::mem::take(&mut queue.waiters)).collect();
        let wakers: Vec<Waker> =
            waiters.into_iter().flat_map(|waiters| inner.refuse(waiters, &Error::Closed)).collect();
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Passes the grant to the next waiter. Returns false without one, or if other clients are due.
    pub(crate) fn pass(&self, lease: &mut Lease, now: Deadline) -> bool {
        let state = lease.state();
        let request = &*state.request;
        let may_pass = request.has_queue()
            && now.since(state.granted_at) < PASS_FOR
            && request.max_hold.is_none()
            && state.ttl() == request.ttl
            && state.valid_until().since(now) >= request.ttl.third()
            && !state.is_converting();
        let Some(next_fence) = lease.next_fence().filter(|_| may_pass) else { return false };
        let mut inner = lock(&self.inner);
        let Some(queue) = inner.queues.get_mut(request) else { return false };
        // A loss is declared before it vacates the queue, so this check does not miss it.
        if !queue.head.is(state) || state.end_reason().is_some() {
            return false;
        }
        let Some((to, waker)) = queue.waiters.pop_first() else { return false };
        queue.head = Head::Passing { to, lease: lease.next_lease(next_fence) };
        drop(inner);
        waker.wake();
        true
    }

    /// Makes the next waiter ask after the grant has ended. A task it was passed to is revoked.
    pub(crate) fn vacate(&self, state: &LeaseState) {
        if !state.request.has_queue() {
            return;
        }
        let mut inner = lock(&self.inner);
        let Some(queue) = inner.queues.get_mut(&*state.request) else { return };
        if !queue.head.is(state) {
            return;
        }
        let head = std::mem::replace(&mut queue.head, Head::Idle);
        let next = inner.next_asks(&state.request, AskedRequest::NotMade, self.clock.now());
        drop(inner);
        drop(head);
        next.wake();
    }

    /// Checks the queue for the renewal task: a head with waiters that has not polled its request
    /// for a TTL loses its place. Returns when to check again, if at all.
    pub(crate) fn check(&self, request: &Request, now: Deadline) -> Option<Deadline> {
        let ttl = request.ttl.as_duration();
        let mut inner = lock(&self.inner);
        let queue = inner.queues.get_mut(request)?;
        if queue.waiters.is_empty() {
            queue.is_checked = false;
            if matches!(queue.head, Head::Idle) {
                inner.queues.remove(request);
            }
            return None;
        }
        let (polled_at, waker, asked) = match &mut queue.head {
            Head::Asking { request: AskedRequest::Polling, .. } => return Some(now.plus(ttl)),
            Head::Asking { polled_at, waker, request, .. } => (polled_at, waker, request),
            _ => return Some(now.plus(ttl)),
        };
        if now < polled_at.plus(ttl) {
            return Some(polled_at.plus(ttl));
        }
        // A slow store may not have woken it: it is woken first, and loses its place after that.
        if let Some(waker) = waker.take() {
            drop(inner);
            waker.wake();
            return Some(now.plus(ttl / 3));
        }
        let asked = std::mem::replace(asked, AskedRequest::NotMade);
        let next = inner.next_asks(request, asked, now);
        drop(inner);
        next.wake();
        Some(now.plus(ttl))
    }
}

impl Inner {
    /// Makes the first waiter the head, with this request. Without waiters the queue ends.
    fn next_asks(&mut self, key: &Request, request: AskedRequest, now: Deadline) -> Next {
        let Some(queue) = self.queues.get_mut(key) else { return Next { waker: None, _unused: request } };
        if let Some((id, waker)) = queue.waiters.pop_first() {
            queue.head = Head::Asking { id, polled_at: now, waker: None, request };
            return Next { waker: Some(waker), _unused: AskedRequest::NotMade };
        }
        queue.head = Head::Idle;
        if !queue.is_checked {
            self.queues.remove(key);
        }
        Next { waker: None, _unused: request }
    }

    /// Stores the error for these waiters, and returns their wakers for the caller to wake.
    fn refuse(&mut self, waiters: Waiters, error: &Error) -> Vec<Waker> {
        let mut wakers = Vec::with_capacity(waiters.len());
        for (id, waker) in waiters.into_iter() {
            self.failed.insert(id, error.clone());
            wakers.push(waker);
        }
        wakers
    }
}

/// The work after the lock is released: wake the new head, or drop (withdraw) an unused request.
struct Next {
    waker: Option<Waker>,
    _unused: AskedRequest,
}

impl Next {
    fn wake(self) {
        self.waker.into_iter().for_each(Waker::wake);
    }
}

impl Head {
    /// Returns the lease that a task holds or is passed.
    fn lease(&self) -> Option<&Arc<LeaseState>> {
        match self {
            Head::Held(state) => Some(state),
            Head::Passing { lease, .. } => Some(lease.state()),
            Head::Idle | Head::Asking { .. } => None,
        }
    }

    fn is(&self, state: &LeaseState) -> bool {
        self.lease().is_some_and(|held| held.id == state.id)
    }
}

/// Returns the hash stored in a request: every lock and release looks its queue up several times.
#[derive(Default)]
struct StoredHash(u64);

impl Hasher for StoredHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "a request stores its hash");
    }
}
