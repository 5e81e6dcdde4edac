//! The options of a lock, and the request that they make.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use crate::acquire::{Request, acquire, acquire_detached};
use crate::claim::{Names, Share};
use crate::error::{Error, Result, change_valid};
use crate::lease::Lease;
use crate::lease::detached::Detached;
use crate::locks::Client;
use crate::sync::Arc;
use crate::token::Owner;
use crate::ttl::Ttl;

/// Gives a lock type, and its blocking twin of the same name, the listed option methods:
/// `lock_options!(Mutex: ttl wait owner)`. The async type has its [`LockOptions`] in `options`.
macro_rules! lock_options {
    ($lock:ident: $($option:ident)*) => {
        impl $lock {
            $($crate::kinds::options::lock_option!(options.$option);)*
        }

        impl ::std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.options.fmt_as(stringify!($lock), f)
            }
        }

        #[cfg(not(shuttle))]
        impl $crate::blocking::$lock {
            $($crate::kinds::options::lock_option!(inner.$option);)*
        }
    };
}
pub(super) use lock_options;

/// Gives a lock type with a method `lock`, and its blocking twin, the methods that run work.
macro_rules! run_methods {
    ($lock:ident) => {
        impl $lock {
            /// Runs the work under the lock. See [`Lease::run`](crate::Lease::run).
            ///
            /// # Cancel safety
            /// Dropped anywhere, the work is cancelled and nothing is left behind.
            pub fn run<T, F, W>(&self, work: F) -> impl Future<Output = Result<T>> + use<T, F, W>
            where
                F: FnOnce($crate::Proof) -> W,
                W: Future<Output = T>,
            {
                let lock = self.lock();
                async { lock.await?.run(work).await }
            }

            /// Like `run`, and rolls back if the lease was lost. See
            /// [`Lease::run_or_rollback`](crate::Lease::run_or_rollback).
            ///
            /// # Cancel safety
            /// As [`Lease::run_or_rollback`](crate::Lease::run_or_rollback).
            pub fn run_or_rollback<T, F, W, G, R>(
                &self,
                work: F,
                rollback: G,
            ) -> impl Future<Output = Result<T>> + use<T, F, W, G, R>
            where
                F: FnOnce($crate::Proof) -> W,
                W: Future<Output = T>,
                G: FnOnce($crate::Setback<T>) -> R,
                R: Future<Output = ()>,
            {
                let lock = self.lock();
                async { lock.await?.run_or_rollback(work, rollback).await }
            }
        }

        #[cfg(not(shuttle))]
        impl $crate::blocking::$lock {
            /// Runs the work under the lock. See [`Lease::run`](crate::blocking::Lease::run).
            pub fn run<T>(&self, work: impl FnOnce(&$crate::Proof) -> T) -> Result<T> {
                self.lock()?.run(work)
            }

            /// Like `run`, and rolls back if the lease was lost. See
            /// [`Lease::run_or_rollback`](crate::blocking::Lease::run_or_rollback).
            pub fn run_or_rollback<T>(
                &self,
                work: impl FnOnce(&$crate::Proof) -> T,
                rollback: impl FnOnce($crate::Setback<T>),
            ) -> Result<T> {
                self.lock()?.run_or_rollback(work, rollback)
            }
        }
    };
}
pub(super) use run_methods;

/// The signature and docs of each option. The table of [`Mutex`](crate::Mutex) has the defaults.
macro_rules! lock_option {
    ($field:ident.ttl) => {
        /// Sets the TTL: the time that the lock stays taken after its holder dies.
        pub fn ttl(mut self, ttl: ::std::time::Duration) -> Self {
            self.$field = self.$field.ttl(ttl);
            self
        }
    };
    ($field:ident.wait) => {
        /// Sets the wait before acquiring fails with [`Error::Busy`](crate::Error::Busy). Zero does
        /// not wait; [`Duration::MAX`](::std::time::Duration::MAX), the default, waits for ever.
        ///
        /// After the wait the client asks the store for the holder that is in the way, for up to
        /// 250 ms. A store that does not answer is
        /// [`Error::Unreachable`](crate::Error::Unreachable), not busy.
        pub fn wait(mut self, wait: ::std::time::Duration) -> Self {
            self.$field = self.$field.wait(wait);
            self
        }
    };
    ($field:ident.owner) => {
        /// Sets the label of the holder, for people who inspect the lock.
        pub fn owner(mut self, label: impl AsRef<str>) -> Self {
            self.$field = self.$field.owner(label);
            self
        }
    };
    ($field:ident.max_hold) => {
        /// Limits how long the lease is held: past this it is lost
        /// ([`Loss::HoldLimit`](crate::Loss::HoldLimit)), also if its holder hangs.
        pub fn max_hold(mut self, max_hold: ::std::time::Duration) -> Self {
            self.$field = self.$field.max_hold(max_hold);
            self
        }
    };
    ($field:ident.no_renewal) => {
        /// Turns off renewal: the lease ends with its TTL unless [extended](crate::Lease::extend).
        pub fn no_renewal(mut self) -> Self {
            self.$field = self.$field.no_renewal();
            self
        }
    };
    ($field:ident.min_validity) => {
        /// Sets the least time left of a grant, or it is renewed or fails
        /// ([`Late`](crate::Error::Late)).
        pub fn min_validity(mut self, min_validity: ::std::time::Duration) -> Self {
            self.$field = self.$field.min_validity(min_validity);
            self
        }
    };
    ($field:ident.strict_order) => {
        /// Gives each caller its own place in the store's queue: first come, first served across
        /// clients. Each hand-over between callers of one client then costs a request.
        pub fn strict_order(mut self) -> Self {
            self.$field = self.$field.strict_order();
            self
        }
    };
}
pub(super) use lock_option;

/// The client and the options of a lock, which each lock type wraps. Its futures do not borrow it.
#[derive(Clone)]
pub(super) struct LockOptions {
    pub(super) client: Arc<Client>,
    /// The request, or the first error in a name or an option, which acquiring reports.
    request: Result<Arc<Request>>,
}

impl LockOptions {
    pub(super) fn new(client: Arc<Client>, names: Result<Names>) -> Self {
        let request = names.map(|names| {
            Arc::new(Request {
                names,
                share: Share::Exclusive,
                owner: client.defaults.owner.clone(),
                ttl: client.defaults.ttl,
                renews: true,
                max_hold: None,
                acquire_timeout: None,
                min_validity: None,
                strict_order: false,
                is_internal: false,
                queue_hash: OnceLock::new(),
            })
        });
        LockOptions { client, request }
    }

    pub(super) fn ttl(self, ttl: Duration) -> Self {
        self.try_set(|request| Ttl::new(ttl).map(|ttl| request.ttl = ttl))
    }

    pub(super) fn wait(self, wait: Duration) -> Self {
        self.set(|request| request.acquire_timeout = Some(wait))
    }

    pub(super) fn owner(self, label: impl AsRef<str>) -> Self {
        self.try_set(|request| Owner::new(label).map(|owner| request.owner = owner))
    }

    pub(super) fn max_hold(self, max_hold: Duration) -> Self {
        self.try_set(|request| {
            if max_hold.is_zero() {
                return Err(Error::invalid("max_hold", "0", "a lease held for no time is no lease"));
            }
            request.max_hold = Some(max_hold);
            Ok(())
        })
    }

    pub(super) fn no_renewal(self) -> Self {
        self.set(|request| request.renews = false)
    }

    pub(super) fn min_validity(self, min_validity: Duration) -> Self {
        self.set(|request| request.min_validity = Some(min_validity))
    }

    pub(super) fn strict_order(self) -> Self {
        self.set(|request| request.strict_order = true)
    }

    /// For a lock that running work needs: each task asks the store itself, also during a drain.
    #[cfg(not(shuttle))]
    pub(super) fn internal(self) -> Self {
        self.set(|request| (request.strict_order, request.is_internal) = (true, true))
    }

    /// Returns a copy with this share. The default share is exclusive.
    pub(super) fn with_share(&self, share: Result<Share>) -> Self {
        self.clone().try_set(|request| share.map(|share| request.share = share))
    }

    fn set(self, change: impl FnOnce(&mut Request)) -> Self {
        self.try_set(|request| {
            change(request);
            Ok(())
        })
    }

    fn try_set(mut self, change: impl FnOnce(&mut Request) -> Result<()>) -> Self {
        change_valid(&mut self.request, |request| {
            let request = Arc::make_mut(request);
            request.queue_hash = OnceLock::new();
            change(request)
        });
        self
    }

    pub(super) fn acquire(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        let (client, request) = (self.client.clone(), self.checked_request());
        async move {
            let request = request?;
            acquire(&client, &request, request.acquire_timeout).await
        }
    }

    /// Acquires without a wait: returns `None` if the lock is busy.
    pub(super) fn try_acquire(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        let (client, request) = (self.client.clone(), self.checked_request());
        async move { none_if_busy(acquire(&client, &request?, Some(Duration::ZERO)).await) }
    }

    pub(super) fn acquire_detached(&self) -> impl Future<Output = Result<Detached>> + Send + use<> {
        let (client, request) = (self.client.clone(), self.checked_request());
        async move {
            let request = request?;
            acquire_detached(&client, &request, request.acquire_timeout).await
        }
    }

    pub(super) fn try_acquire_detached(
        &self,
    ) -> impl Future<Output = Result<Option<Detached>>> + Send + use<> {
        let (client, request) = (self.client.clone(), self.checked_request());
        async move { none_if_busy(acquire_detached(&client, &*request?, Some(Duration::ZERO)).await) }
    }

    /// Returns the request if its options agree with each other. Only now are all of them known.
    fn checked_request(&self) -> Result<Arc<Request>> {
        let request = self.request.clone()?;
        request.check_min_validity()?;
        Ok(request)
    }

    pub(super) fn fmt_as(&self, lock_type: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct(lock_type);
        match &self.request {
            Ok(request) => match request.names.only() {
                Some(name) => out.field("name", name),
                None => out.field("names", &request.names),
            }
            .field("ttl", &request.ttl),
            Err(error) => out.field("invalid", error),
        };
        out.finish_non_exhaustive()
    }
}

fn none_if_busy<T>(acquired: Result<T>) -> Result<Option<T>> {
    match acquired {
        Ok(lease) => Ok(Some(lease)),
        Err(Error::Busy { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
