//! What happened reaches the hook and the metrics, under the documented names. (The log: `tests/core/log.rs`.)

use leasehold_testkit as common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{client, everything, failing_cleanup, paused_runtime};
use leasehold::{Event, Options};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn metrics_have_the_documented_names_and_the_right_counts() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        paused_runtime().block_on(async {
            let store = failing_cleanup();
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
    let documented = include_str!("../../src/event.rs");
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
                Event::RenewalRecovered { .. } => "renewed again",
                Event::Lost { .. } => "lost",
                Event::Released { .. } => "released",
                Event::CleanupFailed { .. } => "clean-up failed",
                _ => "something new",
            });
            async {}
        });
        let store = failing_cleanup();
        everything(store.clone(), options.over(store).unwrap()).await;
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
        "renewed again",
        "lost",
        "acquired",
        "released",
        "clean-up failed",
    ];
    assert_eq!(heard, expected);
}
