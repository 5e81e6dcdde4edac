//! What happened reaches the hook, the log and the metrics, under the documented names, and carries no secret.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use common::{Mood, Moody, client, ms, paused_runtime, secs};
use leasehold::{Clock, Event, Locks, Options};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// Everything that can happen to a lease, once or more.
async fn everything(store: Arc<Moody>, locks: Locks) {
    // Acquired, passed, released.
    let held = locks.mutex("x").lock().await.unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mutex = locks.mutex("x");
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    tokio::time::sleep(ms(1)).await;
    // Busy.
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
    for task in waiting {
        task.await.unwrap();
    }
    // Renewal failed, then lost.
    let lease = locks.mutex("x").lock().await.unwrap();
    store.failing_renewals.store(1, Ordering::SeqCst);
    tokio::time::sleep(secs(15)).await;
    locks.evict("x").await.unwrap();
    lease.lost().await;
    drop(lease);
    // Clean-up failed.
    drop(locks.mutex("bad").lock().await.unwrap());
    locks.close().await;
}

fn moody() -> Arc<Moody> {
    let bad =
        |call: &str, name: &str| if (call, name) == ("release", "bad") { Mood::Fails } else { Mood::Well };
    Moody::by(Clock::tokio(), ms(0), bad)
}

#[test]
fn metrics_have_the_documented_names_and_the_right_counts() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        paused_runtime().block_on(async {
            let store = moody();
            everything(store.clone(), client(&store, "a")).await;
        });
    });
    let mut counts = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<String> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.key().name(), labels.join(","));
        let count = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(values) => values.len() as u64,
            DebugValue::Gauge(_) => panic!("no gauge is documented"),
        };
        counts.insert(name, count);
    }
    let cleanups = counts.remove("leasehold_cleanup_failures_total{}");
    assert!(cleanups.is_some_and(|count| count > 1), "{counts:?}");
    let expected = [
        ("leasehold_acquired_total{}", 6),
        ("leasehold_busy_total{}", 1),
        ("leasehold_hold_seconds{}", 6),
        ("leasehold_lost_total{reason=deleted}", 1),
        ("leasehold_passed_total{}", 2),
        ("leasehold_released_total{}", 5),
        ("leasehold_renewal_failures_total{}", 1),
        ("leasehold_wait_seconds{}", 6),
    ];
    let expected: BTreeMap<String, u64> =
        expected.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(counts, expected);
    // What is documented is what there is.
    let documented = include_str!("../src/event.rs");
    for name in expected.keys().chain([&"leasehold_cleanup_failures_total{".to_owned()]) {
        let name = name.split('{').next().unwrap();
        assert!(documented.contains(&format!("//! | `{name}` |")), "{name} is not documented");
    }
}

#[test]
fn the_hook_hears_everything_in_order() {
    let heard: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let notes = heard.clone();
    paused_runtime().block_on(async {
        let options = Options::default().on_event(move |event| {
            notes.lock().unwrap().push(match event {
                Event::Acquired { passed: true, .. } => "passed",
                Event::Acquired { .. } => "acquired",
                Event::Busy { .. } => "busy",
                Event::RenewalFailed { .. } => "renewal failed",
                Event::Lost { .. } => "lost",
                Event::Released { .. } => "released",
                Event::CleanupFailed { .. } => "clean-up failed",
                _ => "something new",
            });
            async {}
        });
        let store = moody();
        everything(store.clone(), Locks::over(store, options).unwrap()).await;
    });
    let mut heard = heard.lock().unwrap().clone();
    heard.dedup();
    let expected = [
        "acquired",
        "busy",
        "released",
        "acquired",
        "released",
        "passed",
        "released",
        "passed",
        "released",
        "acquired",
        "renewal failed",
        "lost",
        "acquired",
        "released",
        "clean-up failed",
    ];
    assert_eq!(heard, expected);
}

/// Where the log goes.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_log_tells_of_a_loss_and_never_shows_a_secret() {
    let page = Page::default();
    let writer = page.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_ansi(false)
        .without_time()
        .with_writer(move || writer.clone())
        .finish();
    let _log = tracing_subscriber::util::SubscriberInitExt::set_default(subscriber);
    paused_runtime().block_on(async {
        let store = moody();
        everything(store.clone(), client(&store, "the-owner")).await;
    });
    let log = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    assert!(
        log.contains("ERROR") && log.contains("lease lost") && log.contains("reason=\"deleted\""),
        "{log}"
    );
    assert!(log.contains("WARN") && log.contains("a renewal got no answer; trying again"), "{log}");
    // 32 hex digits in a row would be the secret part of a token.
    let longest = log.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap();
    assert!(longest < 20, "{log}");
}
