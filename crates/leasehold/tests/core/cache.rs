//! A cache: one loader per key, whoever fails, dies, stalls or is cancelled; nothing old is written over what is newer.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::stores::{on_a_server, on_every_store_and_server, plain_client};
use common::{Dice, ms, secs};
use leasehold::{Cache, Error, LoadError, Locks};
use leasehold_lab::{Kind, Reply, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(600);

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// A loader that always gives this, and counts.
fn gives(
    text: &str,
    loads: &Arc<AtomicU64>,
) -> impl FnOnce() -> std::future::Ready<Result<Vec<u8>, Infallible>> + use<> {
    let (value, loads) = (bytes(text), loads.clone());
    move || {
        loads.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(value))
    }
}

/// A loader that says when it has begun, and ends when it is told what to give.
struct Held {
    begun: oneshot::Receiver<()>,
    end: oneshot::Sender<Result<Option<Vec<u8>>, String>>,
    task: JoinHandle<Result<Option<Vec<u8>>, LoadError<String>>>,
}

fn held(cache: &Cache, key: &str, ttl: Duration) -> Held {
    let (begin, begun) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let (cache, key) = (cache.clone(), key.to_owned());
    let task = tokio::spawn(async move {
        let loader = || async {
            begin.send(()).unwrap();
            ended.await.unwrap()
        };
        cache.find_or_load(key, ttl, loader).await
    });
    Held { begun, end, task }
}

impl Held {
    /// One that loads.
    async fn begun(cache: &Cache, key: &str, ttl: Duration) -> Held {
        let mut loading = held(cache, key, ttl);
        (&mut loading.begun).await.unwrap();
        loading
    }

    async fn gives(self, text: &str) -> Option<Vec<u8>> {
        self.end.send(Ok(Some(bytes(text)))).unwrap();
        self.task.await.unwrap().unwrap()
    }
}

async fn waiting(cache: &Cache, key: &str, loads: &Arc<AtomicU64>) -> JoinHandle<Vec<u8>> {
    let (cache, key, loads) = (cache.clone(), key.to_owned(), loads.clone());
    let task =
        tokio::spawn(
            async move { cache.get_or_load(key, LONG, gives("by a waiter", &loads)).await.unwrap() },
        );
    // Long enough to be in line, on any of the stores; where it is not, less is shown, and nothing wrongly.
    tokio::time::sleep(ms(30)).await;
    task
}

#[test]
fn what_is_there_is_not_loaded_again() {
    on_every_store_and_server(|a, b| async move {
        let (mine, theirs) = (a.cache("prices"), b.cache("prices"));
        let loads = Arc::default();
        assert_eq!(mine.get("apples").await.unwrap(), None);
        assert_eq!(mine.get_or_load("apples", LONG, gives("12", &loads)).await.unwrap(), b"12");
        assert_eq!(theirs.get_or_load("apples", LONG, gives("13", &loads)).await.unwrap(), b"12");
        assert_eq!(theirs.get("apples").await.unwrap().unwrap(), b"12");
        assert_eq!(loads.load(Ordering::SeqCst), 1);
        // Another key, and another cache with the same key, are others.
        assert_eq!(theirs.get_or_load("pears", LONG, gives("14", &loads)).await.unwrap(), b"14");
        assert_eq!(b.cache("costs").get_or_load("apples", LONG, gives("15", &loads)).await.unwrap(), b"15");
        assert_eq!(loads.load(Ordering::SeqCst), 3);
        // Loaded anew although it is there; and forgotten.
        assert_eq!(mine.refresh("apples", LONG, gives("16", &loads)).await.unwrap(), b"16");
        assert_eq!(theirs.get("apples").await.unwrap().unwrap(), b"16");
        for key in ["apples", "pears"] {
            mine.invalidate(key).await.unwrap();
            assert_eq!(theirs.get(key).await.unwrap(), None);
        }
        b.cache("costs").invalidate("apples").await.unwrap();
    });
}

#[test]
fn any_bytes_are_a_key_and_any_bytes_a_value() {
    on_every_store_and_server(|a, b| async move {
        let (mine, theirs) = (a.cache("any"), b.cache("any"));
        let long = "x".repeat(70_000);
        let keys: [&[u8]; 8] =
            [b"", b"#", b"{}", b"a\nb", b"..", b"\xff\x00", long.as_bytes(), &long.as_bytes()[1..]];
        for (number, key) in keys.iter().enumerate() {
            let mut value = key.to_vec();
            value.extend_from_slice(b"LHc1");
            value.push(number as u8);
            let loader = || async { Ok::<_, Infallible>(value.clone()) };
            assert_eq!(mine.get_or_load(key, LONG, loader).await.unwrap(), value);
        }
        for (number, key) in keys.iter().enumerate() {
            let there = theirs.get(key).await.unwrap().unwrap();
            assert_eq!((&there[..key.len()], there[key.len() + 4]), (*key, number as u8));
            theirs.invalidate(key).await.unwrap();
        }
        // Nothing is a value too.
        let loads = Arc::default();
        mine.get_or_load("empty", LONG, gives("", &loads)).await.unwrap();
        assert_eq!(theirs.get_or_load("empty", LONG, gives("x", &loads)).await.unwrap(), b"");
        mine.invalidate("empty").await.unwrap();
    });
}

#[test]
fn while_one_loads_the_others_wait_and_all_have_its_value() {
    on_every_store_and_server(|a, b| async move {
        let loading = Held::begun(&a.cache("x"), "k", LONG).await;
        let loads = Arc::default();
        let mut others = Vec::new();
        for locks in [&a, &b, &a, &b] {
            others.push(waiting(&locks.cache("x"), "k", &loads).await);
        }
        assert!(others.iter().all(|task| !task.is_finished()), "somebody did not wait");
        assert_eq!(loading.gives("by the first").await.unwrap(), b"by the first");
        for task in others {
            assert_eq!(task.await.unwrap(), b"by the first");
        }
        assert_eq!(loads.load(Ordering::SeqCst), 0);
        a.cache("x").invalidate("k").await.unwrap();
    });
}

/// However it comes to nothing, the next loads at once: long before any TTL.
#[test]
fn a_loader_that_fails_panics_or_is_cancelled_passes_the_turn_on() {
    on_every_store_and_server(|a, b| async move {
        for (round, ends_by) in ["error", "panic", "cancel", "nothing"].into_iter().enumerate() {
            for other in [&a, &b] {
                let key = format!("k{round}");
                let cache = a.cache("x").loader_ttl(LONG).wait(LONG).absent_for(Duration::ZERO);
                let Held { begun, end, task } = held(&cache, &key, LONG);
                begun.await.unwrap();
                let loads = Arc::default();
                let theirs = other.cache("x").loader_ttl(LONG).wait(LONG);
                let next = waiting(&theirs, &key, &loads).await;
                match ends_by {
                    "error" => {
                        end.send(Err("on purpose".to_owned())).unwrap();
                        let error = task.await.unwrap().unwrap_err();
                        assert_eq!(error, LoadError::Failed("on purpose".to_owned()));
                        assert_eq!(error.to_string(), "the loader failed: on purpose");
                    }
                    // The loader unwraps what never comes.
                    "panic" => {
                        drop(end);
                        assert!(task.await.unwrap_err().is_panic());
                    }
                    "cancel" => {
                        task.abort();
                        assert!(task.await.unwrap_err().is_cancelled());
                    }
                    // Which is not to be remembered here.
                    _ => {
                        end.send(Ok(None)).unwrap();
                        assert_eq!(task.await.unwrap().unwrap(), None);
                    }
                }
                let value = tokio::time::timeout(secs(60), next).await.expect("within no TTL").unwrap();
                assert_eq!(value, b"by a waiter", "{ends_by}");
                assert_eq!(loads.load(Ordering::SeqCst), 1, "{ends_by}");
                other.cache("x").invalidate(&key).await.unwrap();
            }
        }
    });
}

/// Those who wait together: where the first of them fails too, the next loads, and so on.
#[test]
fn of_those_who_wait_together_each_has_its_turn() {
    on_every_store_and_server(|a, b| async move {
        let first = Held::begun(&a.cache("x").loader_ttl(LONG).wait(LONG), "k", LONG).await;
        let (loads, at_once) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut others = Vec::new();
        for locks in [&b, &b, &b, &a, &a] {
            let cache = locks.cache("x").loader_ttl(LONG).wait(LONG);
            let (loads, at_once) = (loads.clone(), at_once.clone());
            others.push(tokio::spawn(async move {
                let fails = || async {
                    assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokio::time::sleep(ms(5)).await;
                    at_once.fetch_sub(1, Ordering::SeqCst);
                    Err::<Vec<u8>, _>(loads.fetch_add(1, Ordering::SeqCst))
                };
                cache.get_or_load("k", LONG, fails).await.unwrap_err().into_failed().unwrap()
            }));
        }
        tokio::time::sleep(ms(50)).await;
        first.end.send(Err("on purpose".to_owned())).unwrap();
        let mut failed = Vec::new();
        for task in others {
            failed.push(tokio::time::timeout(secs(60), task).await.expect("within no TTL").unwrap());
        }
        failed.sort_unstable();
        assert_eq!(failed, [0, 1, 2, 3, 4], "each had its own failure");
        first.task.await.unwrap().unwrap_err();
    });
}

#[test]
fn whoever_waits_and_is_dropped_leaves_nothing_and_the_rest_go_on() {
    on_every_store_and_server(|a, b| async move {
        let loading = Held::begun(&a.cache("x"), "k", LONG).await;
        let loads = Arc::default();
        let first = waiting(&b.cache("x"), "k", &loads).await;
        let second = waiting(&b.cache("x"), "k", &loads).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        // Both of them in the second client; and alone in it.
        loading.gives("a value").await;
        assert_eq!(second.await.unwrap(), b"a value");
        a.cache("x").invalidate("k").await.unwrap();
        let loading = Held::begun(&a.cache("x"), "k", LONG).await;
        let alone = waiting(&b.cache("x"), "k", &loads).await;
        alone.abort();
        assert!(alone.await.unwrap_err().is_cancelled());
        b.settled().await;
        let in_line = a.inspect("cache:x/k").await.unwrap().unwrap().waiters;
        assert!(in_line.is_empty(), "{in_line:?}");
        loading.gives("a value").await;
        assert_eq!(loads.load(Ordering::SeqCst), 0);
        a.cache("x").invalidate("k").await.unwrap();
    });
}

#[test]
fn waiting_has_an_end_and_says_what_to_do() {
    on_every_store_and_server(|a, b| async move {
        let loading = Held::begun(&a.cache("x"), "k", LONG).await;
        for refreshing in [false, true] {
            let cache = b.cache("x").wait(ms(300));
            let loads = Arc::default();
            let waited = match refreshing {
                false => cache.get_or_load("k", LONG, gives("never", &loads)).await,
                true => cache.refresh("k", LONG, gives("never", &loads)).await,
            };
            let text = waited.unwrap_err().to_string();
            let (before, after) = text.split_once(" (").unwrap();
            assert!(before.starts_with("`x/k` was not loaded within "), "{text}");
            assert_eq!(
                after,
                "a is loading it); wait longer (`wait`), serve the old value meanwhile (`stale_for`), or make the \
                 loader faster"
            );
            assert_eq!(loads.load(Ordering::SeqCst), 0);
        }
        loading.gives("a value").await;
        a.cache("x").invalidate("k").await.unwrap();
    });
}

/// Waiting is for others: who finds nobody loading loads, and who finds somebody does not wait.
#[test]
fn one_that_does_not_wait_loads_if_nobody_does() {
    on_every_store_and_server(|a, b| async move {
        let loads = Arc::default();
        for wait in [Duration::ZERO, ms(50)] {
            let cache = b.cache("x").wait(wait);
            assert_eq!(cache.get_or_load("k", LONG, gives("loaded", &loads)).await.unwrap(), b"loaded");
            cache.invalidate("k").await.unwrap();
            b.settled().await;
            let loading = Held::begun(&a.cache("x"), "k", LONG).await;
            let error = cache.get_or_load("k", LONG, gives("never", &loads)).await.unwrap_err();
            assert!(matches!(error, LoadError::Waited { .. }), "{error:?}");
            loading.gives("a value").await;
            assert_eq!(cache.get("k").await.unwrap().unwrap(), b"a value");
            cache.invalidate("k").await.unwrap();
            a.settled().await;
        }
        assert_eq!(loads.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_load_that_takes_too_long_is_given_up_and_the_next_loads() {
    on_every_store_and_server(|a, b| async move {
        let loading = Held::begun(&a.cache("x").load_within(ms(400)), "k", LONG).await;
        let loads = Arc::default();
        let next = waiting(&b.cache("x"), "k", &loads).await;
        let error = loading.task.await.unwrap().unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("loading `x/k` took longer than 400 ms, and was given up; make"), "{text}");
        assert_eq!(next.await.unwrap(), b"by a waiter");
        a.cache("x").invalidate("k").await.unwrap();
    });
}

#[test]
fn that_there_is_nothing_is_remembered_for_a_time_of_its_own() {
    on_every_store_and_server(|a, b| async move {
        let cache = a.cache("x").absent_for(ms(2_000)).early(0.0);
        let nothing = || async { Ok::<Option<Vec<u8>>, Infallible>(None) };
        assert_eq!(cache.find_or_load("k", LONG, nothing).await.unwrap(), None);
        // It is known, and not asked for again.
        let unasked = || async { panic!("it is known") };
        let known: Result<_, LoadError<Infallible>> = b.cache("x").find_or_load("k", LONG, unasked).await;
        assert_eq!(known.unwrap(), None);
        assert_eq!(b.cache("x").get("k").await.unwrap(), None);
        // Until its time is over, long before that of a value.
        let loads = Arc::new(AtomicU64::new(0));
        while loads.load(Ordering::SeqCst) == 0 {
            let counts = || async {
                loads.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(None)
            };
            cache.find_or_load("k", LONG, counts).await.unwrap();
            tokio::time::sleep(ms(20)).await;
        }
        // Whoever needs a value does not take that for one.
        let loads = Arc::default();
        assert_eq!(b.cache("x").get_or_load("k", LONG, gives("there", &loads)).await.unwrap(), b"there");
        assert_eq!(cache.find_or_load("k", LONG, nothing).await.unwrap().unwrap(), b"there");
        a.cache("x").invalidate("k").await.unwrap();
    });
}

/// Returns when it is not fresh any more.
async fn until_stale(cache: &Cache, key: &str) {
    while cache.clone().stale_for(Duration::ZERO).get(key).await.unwrap().is_some() {
        tokio::time::sleep(ms(10)).await;
    }
}

#[test]
fn a_stale_value_is_served_while_one_loads() {
    on_every_store_and_server(|a, b| async move {
        let (mine, theirs) = (a.cache("x").stale_for(LONG), b.cache("x").stale_for(LONG));
        let loads = Arc::default();
        mine.get_or_load("k", ms(200), gives("old", &loads)).await.unwrap();
        until_stale(&mine, "k").await;
        assert_eq!(mine.get("k").await.unwrap().unwrap(), b"old");
        let loading = Held::begun(&mine, "k", LONG).await;
        for cache in [&mine, &theirs, &mine] {
            let value = cache.get_or_load("k", LONG, gives("never", &loads)).await.unwrap();
            assert_eq!(value, b"old", "served at once");
        }
        // Whoever does not want what is stale waits.
        let fresh = waiting(&b.cache("x"), "k", &loads).await;
        assert!(!fresh.is_finished());
        assert_eq!(loading.gives("new").await.unwrap(), b"new");
        assert_eq!(fresh.await.unwrap(), b"new");
        assert_eq!(theirs.get("k").await.unwrap().unwrap(), b"new");
        assert_eq!(loads.load(Ordering::SeqCst), 1);

        // A loader that fails leaves the stale one as it was, for what is left of its time.
        mine.refresh("k", ms(200), gives("old", &loads)).await.unwrap();
        until_stale(&mine, "k").await;
        let loading = Held::begun(&mine, "k", LONG).await;
        loading.end.send(Err("on purpose".to_owned())).unwrap();
        assert_eq!(loading.task.await.unwrap(), Err(LoadError::Failed("on purpose".to_owned())));
        assert_eq!(theirs.get("k").await.unwrap().unwrap(), b"old");
        assert_eq!(b.cache("x").get("k").await.unwrap(), None, "it is still stale");
        assert_eq!(theirs.get_or_load("k", LONG, gives("anew", &loads)).await.unwrap(), b"anew");
        a.cache("x").invalidate("k").await.unwrap();
    });
}

#[test]
fn what_is_stale_for_too_long_is_not_served() {
    on_every_store_and_server(|a, b| async move {
        let loads = Arc::default();
        let cache = a.cache("x").stale_for(ms(300));
        cache.get_or_load("k", ms(100), gives("old", &loads)).await.unwrap();
        // Kept for longer by one who would serve it for longer.
        let since = tokio::time::Instant::now();
        b.cache("x").stale_for(LONG).refresh("k", ms(100), gives("old", &loads)).await.unwrap();
        while cache.get("k").await.unwrap().is_some() {
            tokio::time::sleep(ms(10)).await;
        }
        assert!(since.elapsed() >= ms(395), "{:?}", since.elapsed());
        assert_eq!(b.cache("x").stale_for(LONG).get("k").await.unwrap().unwrap(), b"old");
        assert_eq!(cache.get_or_load("k", LONG, gives("new", &loads)).await.unwrap(), b"new");
        a.cache("x").invalidate("k").await.unwrap();
    });
}

/// Whoever asks after an invalidation does not get what was loaded before it, and it is not kept.
#[test]
fn an_invalidation_defeats_a_loader_that_began_before_it() {
    on_every_store_and_server(|a, b| async move {
        for (other, stale) in [(&a, false), (&b, false), (&a, true), (&b, true)] {
            let loads = Arc::default();
            let mut cache = a.cache("x");
            if stale {
                // With a value that is loaded anew at that moment.
                cache = cache.stale_for(LONG);
                cache.refresh("k", ms(50), gives("older", &loads)).await.unwrap();
                until_stale(&cache, "k").await;
            }
            let loading = Held::begun(&cache, "k", LONG).await;
            let before = waiting(&other.cache("x"), "k", &loads).await;
            other.cache("x").invalidate("k").await.unwrap();
            let after = waiting(&other.cache("x").stale_for(LONG), "k", &loads).await;
            assert!(!before.is_finished() && !after.is_finished());
            loads.store(0, Ordering::SeqCst);
            assert_eq!(loading.gives("outdated").await.unwrap(), b"outdated", "its own caller has it");
            assert_eq!(before.await.unwrap(), b"by a waiter");
            assert_eq!(after.await.unwrap(), b"by a waiter");
            assert_eq!(loads.load(Ordering::SeqCst), 1);
            assert_eq!(cache.get("k").await.unwrap().unwrap(), b"by a waiter");
            cache.invalidate("k").await.unwrap();
            assert_eq!(cache.get("k").await.unwrap(), None);
        }
    });
}

/// A loader whose lease is gone, and who does not know: another has loaded, or has begun to, or the newer value has ended.
#[test]
fn a_loader_that_lost_its_lease_does_not_write_over_a_newer_value() {
    on_every_store_and_server(|a, b| async move {
        for ends in ["there", "ended", "loading"] {
            let loads = Arc::default();
            let stale = Held::begun(&a.cache("x"), "k", LONG).await;
            a.evict("cache:x/k").await.unwrap();
            let theirs = b.cache("x").early(0.0);
            match ends {
                "there" => {
                    theirs.get_or_load("k", LONG, gives("newer", &loads)).await.unwrap();
                    stale.gives("old").await;
                    assert_eq!(theirs.get("k").await.unwrap().unwrap(), b"newer");
                }
                "ended" => {
                    theirs.get_or_load("k", ms(50), gives("newer", &loads)).await.unwrap();
                    until_stale(&theirs, "k").await;
                    stale.gives("old").await;
                    assert_eq!(theirs.get("k").await.unwrap(), None);
                }
                _ => {
                    let newer = Held::begun(&theirs, "k", LONG).await;
                    stale.gives("old").await;
                    assert_eq!(theirs.get("k").await.unwrap(), None);
                    newer.gives("newer").await;
                    assert_eq!(theirs.get("k").await.unwrap().unwrap(), b"newer");
                }
            }
            theirs.invalidate("k").await.unwrap();
        }
    });
}

/// The share of early loads is what the formula says, at several distances from the end.
#[tokio::test(start_paused = true)]
async fn a_value_is_loaded_early_as_often_as_the_formula_says() {
    let (locks, _) = common::two_clients();
    const DRAWS: u64 = 10_000;
    let (load_time, ttl) = (ms(1_000), secs(10));
    for beta in [0.0, 0.5, 1.0, 2.0] {
        for left_ms in [100, 500, 1_000, 3_000, 9_000] {
            let dice = Arc::new(std::sync::Mutex::new(Dice(left_ms)));
            let cache = locks
                .cache("x")
                .early(beta)
                .drawing(move || (dice.lock().unwrap().below(1 << 53) + 1) as f64 / (1u64 << 53) as f64);
            let slow = || async {
                tokio::time::sleep(load_time).await;
                Ok::<_, Infallible>(bytes("slow"))
            };
            cache.refresh("k", ttl, slow).await.unwrap();
            tokio::time::sleep(ttl - ms(left_ms)).await;
            let mut early = 0_u64;
            for _ in 0..DRAWS {
                // A loader that fails leaves everything as it was.
                let fails = || async { Err::<Vec<u8>, _>("loads") };
                match cache.get_or_load("k", ttl, fails).await {
                    Ok(value) => assert_eq!(value, b"slow"),
                    Err(LoadError::Failed("loads")) => {
                        early += 1;
                        // Its turn is given back in the background.
                        locks.settled().await;
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
            let expected = match beta {
                0.0 => 0.0,
                beta => (-(left_ms as f64 / 1_000.0) / beta).exp(),
            };
            let share = early as f64 / DRAWS as f64;
            // Five times what chance makes of so many draws.
            let slack = 5.0 * (expected * (1.0 - expected) / DRAWS as f64).sqrt();
            assert!(
                (share - expected).abs() <= slack,
                "beta {beta}, {left_ms} ms left: {share} for {expected}"
            );
        }
    }
}

/// While one loads early, everybody else is served what is there.
#[test]
fn an_early_load_is_one_and_nobody_waits_for_it() {
    on_every_store_and_server(|a, b| async move {
        let loads = Arc::default();
        let slow = || async {
            tokio::time::sleep(ms(50)).await;
            Ok::<_, Infallible>(bytes("old"))
        };
        // Always early, as close to the end as it always is for such a draw.
        let eager = |locks: &Locks| locks.cache("x").early(1_000.0).drawing(|| f64::MIN_POSITIVE);
        let (mine, theirs) = (eager(&a), eager(&b));
        mine.get_or_load("k", secs(60), slow).await.unwrap();
        let loading = Held::begun(&mine, "k", LONG).await;
        for cache in [&mine, &theirs, &theirs] {
            assert_eq!(cache.get_or_load("k", LONG, gives("never", &loads)).await.unwrap(), b"old");
        }
        assert_eq!(loading.gives("new").await.unwrap(), b"new");
        assert_eq!(b.cache("x").get("k").await.unwrap().unwrap(), b"new");
        assert_eq!(loads.load(Ordering::SeqCst), 0);
        a.cache("x").invalidate("k").await.unwrap();
    });
}

#[cfg(feature = "json")]
#[test]
fn values_of_a_type_are_kept_as_json() {
    on_every_store_and_server(|a, b| async move {
        let prices = a.cache("prices").json::<(String, Option<u32>)>();
        let apples = ("apples".to_owned(), Some(12));
        let load = || async { Ok::<_, Infallible>(apples.clone()) };
        assert_eq!(prices.get_or_load("apples", LONG, load).await.unwrap(), apples);
        assert_eq!(prices.get("apples").await.unwrap(), Some(apples.clone()));
        assert_eq!(b.cache("prices").get("apples").await.unwrap().unwrap(), br#"["apples",12]"#);
        // Of another type: it is loaded anew, once.
        let other = b.cache("prices").json::<Vec<u8>>();
        assert_eq!(other.get("apples").await.unwrap(), None);
        let load = || async { Ok::<_, Infallible>(vec![1, 2]) };
        assert_eq!(other.get_or_load("apples", LONG, load).await.unwrap(), [1, 2]);
        assert_eq!(b.cache("prices").get("apples").await.unwrap().unwrap(), b"[1,2]");
        // What cannot be written so is an error, and the turn passes on.
        let odd = a.cache("prices").json::<std::collections::HashMap<(u8, u8), u8>>();
        let load = || async { Ok::<_, Infallible>([((1, 2), 3)].into()) };
        let error = odd.get_or_load("odd", LONG, load).await.unwrap_err();
        assert!(error.to_string().starts_with("invalid value to be cached"), "{error}");
        assert_eq!(b.cache("prices").get("odd").await.unwrap(), None);
        a.cache("prices").invalidate("apples").await.unwrap();
    });
}

#[test]
fn bad_input_is_refused_before_anything_is_loaded() {
    on_every_store_and_server(|a, _| async move {
        let unasked = || async { panic!("it was refused") };
        let caches = [
            a.cache(""),
            a.cache("a/b"),
            a.cache("x".repeat(129)),
            a.cache("x").early(-1.0),
            a.cache("x").early(f64::NAN),
            a.cache("x").loader_ttl(ms(1)),
            a.cache("x").load_within(Duration::ZERO),
            a.cache("x").stale_for(Duration::MAX),
            a.cache("x").absent_for(Duration::MAX),
        ];
        for cache in caches {
            let asked: Result<_, LoadError<Infallible>> = cache.get_or_load("k", LONG, unasked).await;
            assert!(matches!(asked, Err(LoadError::Store(Error::Invalid { .. }))), "{cache:?}: {asked:?}");
            assert!(matches!(cache.get("k").await, Err(Error::Invalid { .. })), "{cache:?}");
        }
        for ttl in [Duration::ZERO, Duration::MAX] {
            let asked: Result<_, LoadError<Infallible>> = a.cache("x").get_or_load("k", ttl, unasked).await;
            assert!(matches!(asked, Err(LoadError::Store(Error::Invalid { .. }))), "{ttl:?}: {asked:?}");
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_values_says_so() {
    let (_store, locks) = plain_client();
    let error = locks.cache("x").get("k").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the plain store does not offer a cache: it keeps no values beside its locks"
    );
}

#[test]
fn a_server_without_scripts_has_no_caches() {
    on_a_server("?scripts=off", |a, _| async move {
        assert!(matches!(a.cache("x").get("k").await, Err(Error::Unsupported { .. })));
    });
}

#[test]
fn a_closed_client_waits_no_more() {
    on_every_store_and_server(|a, b| async move {
        let loading = Held::begun(&a.cache("x"), "k", LONG).await;
        let cache = b.cache("x");
        let waits =
            tokio::spawn(async move { cache.get_or_load("k", LONG, gives("never", &Arc::default())).await });
        tokio::time::sleep(ms(30)).await;
        b.close().await;
        assert_eq!(waits.await.unwrap(), Err(LoadError::Store(Error::Closed)));
        assert!(matches!(b.cache("x").get("k").await, Err(Error::Closed)));
        loading.gives("a value").await;
        a.cache("x").invalidate("k").await.unwrap();
    });
}

/// Also where one of its own tasks loads: that goes on, and is not kept.
#[test]
fn whoever_waits_for_its_own_client_is_told_when_that_is_closed() {
    on_every_store_and_server(|a, b| async move {
        let loading = Held::begun(&b.cache("x"), "k", LONG).await;
        let cache = b.cache("x").wait(LONG);
        let waits =
            tokio::spawn(async move { cache.get_or_load("k", LONG, gives("never", &Arc::default())).await });
        tokio::time::sleep(ms(30)).await;
        b.close().await;
        let told = tokio::time::timeout(secs(60), waits).await.expect("at once").unwrap();
        assert_eq!(told, Err(LoadError::Store(Error::Closed)));
        assert_eq!(loading.gives("a value").await.unwrap(), b"a value");
        assert_eq!(a.cache("x").get("k").await.unwrap(), None);
        a.cache("x").invalidate("k").await.unwrap();
    });
}

/// Whatever ends a load, nothing of it stays on the server.
#[tokio::test]
async fn nothing_stays_of_a_load_that_comes_to_nothing() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let keys = || {
        let Reply::Array(keys) = server.command(&["KEYS", "*"]).unwrap() else { panic!("no keys") };
        let keys = keys.iter().map(|key| key.text().unwrap().to_owned());
        keys.filter(|key| key != "{lock:}:fence").collect::<Vec<_>>()
    };
    for ends_by in ["error", "panic", "cancel", "invalidation"] {
        let Held { begun, end, task } = held(&locks.cache("x"), "k", LONG);
        begun.await.unwrap();
        let mut there = keys();
        there.sort_unstable();
        assert_eq!(there, ["cached:x/k", "lock:cache:x/k"], "while it loads");
        match ends_by {
            "error" => drop(end.send(Err("on purpose".to_owned()))),
            "panic" => drop(end),
            "cancel" => task.abort(),
            _ => {
                locks.cache("x").invalidate("k").await.unwrap();
                end.send(Ok(Some(bytes("outdated")))).unwrap();
            }
        }
        let _ = task.await;
        let since = tokio::time::Instant::now();
        while !keys().is_empty() {
            assert!(since.elapsed() < secs(10), "{ends_by} leaves {:?}", keys());
            tokio::time::sleep(ms(5)).await;
        }
    }
}

#[test]
fn code_that_is_not_async_has_the_same() {
    let locks = leasehold::blocking::connect("memory:").unwrap();
    let cache = locks.cache("x").wait(secs(60)).stale_for(secs(1)).absent_for(secs(5)).early(1.0);
    let cache = cache.loader_ttl(secs(5)).load_within(secs(60));
    let loads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let slow = || {
                    loads.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(ms(50));
                    Ok::<_, Infallible>(bytes("loaded"))
                };
                assert_eq!(cache.get_or_load("k", LONG, slow).unwrap(), b"loaded");
            });
        }
    });
    assert_eq!(loads.load(Ordering::SeqCst), 1);
    assert_eq!(cache.get("k").unwrap().unwrap(), b"loaded");
    assert_eq!(cache.refresh("k", LONG, || Ok::<_, Infallible>(bytes("anew"))).unwrap(), b"anew");
    cache.invalidate("k").unwrap();
    assert_eq!(cache.get_or_load("k", LONG, || Err("on purpose")), Err(LoadError::Failed("on purpose")));
    // A loader may use the client it is called by.
    let nested = || locks.mutex("y").run(|_| None);
    assert_eq!(cache.find_or_load("k", LONG, nested).unwrap(), None);
    #[cfg(feature = "json")]
    {
        let typed = locks.cache("x").json::<Vec<u32>>();
        assert_eq!(typed.get_or_load("t", LONG, || Ok::<_, Infallible>(vec![1, 2])).unwrap(), [1, 2]);
    }
}

/// What somebody else keeps under the name is neither given out nor written over.
#[tokio::test]
async fn what_is_no_value_of_a_cache_is_an_error() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    server.command(&["SET", "cached:x/k", "somebody's"]).unwrap();
    let cache = locks.cache("x");
    let unasked = || async { panic!("it was refused") };
    let asked: Result<_, LoadError<Infallible>> = cache.get_or_load("k", LONG, unasked).await;
    let text = asked.unwrap_err().to_string();
    assert!(text.contains("`cached:x/k`: something else is kept under its name"), "{text}");
    assert_eq!(server.command(&["GET", "cached:x/k"]).unwrap().text(), Some("somebody's"));
    // Taken away by whoever says so.
    cache.invalidate("k").await.unwrap();
    assert_eq!(cache.get("k").await.unwrap(), None);
}

/// The same on both servers.
#[tokio::test]
async fn a_value_is_pushed_to_those_who_wait_on_redis_and_on_valkey() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let a = leasehold::connect(&server.url()).await.unwrap();
        let b = leasehold::connect(&server.url()).await.unwrap();
        let loading = Held::begun(&a.cache("x"), "k", LONG).await;
        let loads = Arc::default();
        let waits = waiting(&b.cache("x"), "k", &loads).await;
        loading.gives("a value").await;
        assert_eq!(waits.await.unwrap(), b"a value", "{kind:?}");
        let loading = Held::begun(&a.cache("x").early(0.0), "other", LONG).await;
        b.cache("x").invalidate("other").await.unwrap();
        loading.gives("outdated").await;
        assert_eq!(b.cache("x").get("other").await.unwrap(), None, "{kind:?}");
        assert_eq!(loads.load(Ordering::SeqCst), 0, "{kind:?}");
    }
}

/// A key in demand costs a server little: callers of one client ask together.
#[tokio::test]
async fn a_thousand_callers_of_one_client_ask_a_handful_of_times() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let other = leasehold::connect(&server.url()).await.unwrap();
    let commands = || {
        let info = server.command(&["INFO", "commandstats"]).unwrap();
        let text = info.text().unwrap().to_owned();
        let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
        let scripts = text.lines().filter(|line| line.starts_with("cmdstat_eval"));
        scripts.filter_map(calls).sum::<u64>()
    };
    // Their keeper and its renewals are not what is counted.
    let loading = Held::begun(&other.cache("x").loader_ttl(secs(60)), "k", LONG).await;
    let before = commands();
    let loads = Arc::default();
    let tasks: Vec<_> = (0..1_000)
        .map(|_| {
            let (cache, loads) = (locks.cache("x"), Arc::clone(&loads));
            tokio::spawn(async move { cache.get_or_load("k", LONG, gives("never", &loads)).await.unwrap() })
        })
        .collect();
    tokio::time::sleep(ms(200)).await;
    loading.gives("a value").await;
    for task in tasks {
        assert_eq!(task.await.unwrap(), b"a value");
    }
    let asked = commands() - before;
    println!("a thousand callers: {asked} requests");
    assert!(asked <= 25, "{asked} requests");
    assert_eq!(loads.load(Ordering::SeqCst), 0);
}

/// Whoever looks and is not polled any more holds nobody up.
#[tokio::test]
async fn a_caller_that_is_not_polled_holds_nobody_up() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let (cache, loads) = (locks.cache("x"), Arc::default());
    cache.get_or_load("k", LONG, gives("a value", &loads)).await.unwrap();
    let mut stuck = std::pin::pin!(cache.get("k"));
    assert!(futures_util::future::poll_immediate(stuck.as_mut()).await.is_none());
    let get = tokio::time::timeout(secs(30), cache.get("k"));
    assert_eq!(get.await.expect("it does not wait for that one").unwrap().unwrap(), b"a value");
    // The same for those who wait for a load: whoever is there first takes the turn.
    let load = |key: &'static str| cache.get_or_load(key, LONG, gives("loaded", &loads));
    let mut stuck = std::pin::pin!(load("other"));
    // Polled until it has asked for its turn, and no more.
    'asked: loop {
        assert!(futures_util::future::poll_immediate(stuck.as_mut()).await.is_none());
        for _ in 0..100 {
            if locks.inspect("cache:x/other").await.unwrap().is_some() {
                break 'asked;
            }
            tokio::time::sleep(ms(2)).await;
        }
    }
    let load = tokio::time::timeout(secs(30), load("other"));
    assert_eq!(load.await.expect("it does not wait for that one").unwrap(), b"loaded");
}
