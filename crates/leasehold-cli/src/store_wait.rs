//! `--store-wait`: waits for a store that is down.

use std::future::ready;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Clock, Error};

use crate::duration::short;
use crate::exit::without_advice;
use crate::progress::{Progress, so_far};

/// The pause before the next attempt; it doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Calls `open` until the store answers, for at most this long.
///
/// # Errors
/// The last error, and what to add to its message.
///
/// # Cancel safety
/// Dropped before it completes, it drops the attempt to open the store.
pub(crate) async fn opened<T, F: Future<Output = leasehold::Result<T>>>(
    wait: Option<Duration>,
    open: impl Fn() -> F,
) -> Result<T, (Error, String)> {
    let plain = |error| (error, String::new());
    let Some(wait) = wait else { return open().await.map_err(plain) };
    let clock = Clock::system().map_err(plain)?;
    let start = clock.now();
    let why = Mutex::new(String::new());
    let opening = async {
        let mut pause = PAUSE_MIN;
        loop {
            let error = match open().await {
                Err(error) if is_down(&error) => error,
                answer => return answer.map_err(plain),
            };
            *why.lock().unwrap_or_else(PoisonError::into_inner) =
                format!(": {}", without_advice(&error.to_string()));
            let waited = clock.now().since(start);
            if waited >= wait {
                return Err((error, format!("; waited {} for the store", short(waited))));
            }
            clock.sleep_until(clock.now().plus(pause.min(wait - waited))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    };
    let describe = |waited| {
        let why = why.lock().unwrap_or_else(PoisonError::into_inner);
        ready(format!("waiting for the store{why}{}", so_far(waited)))
    };
    Progress::new().during(&clock, opening, describe).await
}

/// Whether the same request may succeed later.
fn is_down(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } | Error::Quorum { .. } => true,
        Error::Refused { why, .. } => why.starts_with("LOADING"),
        _ => false,
    }
}
