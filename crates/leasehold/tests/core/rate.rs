//! Rate limits: what a user sees of them, on each store; and a clock that is set back.

use leasehold_testkit as common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::child_test;
use common::clock_shim::WallClock;
use common::stores::{on_every_store, on_every_store_and_server, plain_client};
use common::{Dice, client, in_parallel, ms, scaled, secs};
use futures_util::future::join_all;
use leasehold::cells::rate::Algorithm;
use leasehold::store::memory::Memory;
use leasehold::{Clock, Error, Locks, RateLimit, Taken};
use leasehold_lab::{Kind, Server};

const RULES: [Algorithm; 3] =
    [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra { burst: 3 }];

#[test]
fn all_who_use_the_name_share_what_there_is() {
    on_every_store_and_server(|a, b| async move {
        for rule in RULES {
            let [mine, theirs] =
                [&a, &b].map(|locks| locks.rate_limit("x").max(3).per(secs(60)).algorithm(rule));
            let taken = mine.take(2).await.unwrap();
            assert_eq!(
                (taken.allowed, taken.remaining, taken.retry_after),
                (true, 1, Duration::ZERO),
                "{rule:?}"
            );
            assert!(theirs.take(1).await.unwrap().allowed);
            let refused = mine.take(1).await.unwrap();
            assert_eq!((refused.allowed, refused.remaining), (false, 0), "{rule:?}");
            assert!(
                refused.retry_after > secs(1) && refused.retry_after <= secs(61),
                "{rule:?}: {refused:?}"
            );
            assert!(
                refused.reset_after >= refused.retry_after && refused.reset_after <= secs(61),
                "{refused:?}"
            );
        }
        // Another name is another limit.
        assert!(a.rate_limit("y").max(1).per(secs(60)).take(1).await.unwrap().allowed);
    });
}

#[test]
fn what_can_never_be_allowed_is_an_error() {
    on_every_store(|a, _| async move {
        let limit = || a.rate_limit("x").max(5).per(secs(60));
        for (limit, weight, why) in [
            (a.rate_limit("x").per(secs(60)), 1, "invalid maximum of a rate limit `0`"),
            (a.rate_limit("x").max(5), 1, "invalid period of a rate limit `0 ms`"),
            (limit().per(ms(9)), 1, "between 10 ms and 366 days"),
            (limit(), 0, "at least 1 is taken"),
            (limit(), 6, "at most 5 are allowed in a period, so that it never would be"),
            (limit().fixed_window(), 6, "at most 5"),
            (limit().gcra(0), 1, "invalid burst of a rate limit `0`"),
            (limit().gcra(3), 4, "at most 3 may come at once, so that it would never be allowed"),
            (limit().per(secs(86_400 * 366)).gcra(2), 1, "more than 100 days to run off"),
            (a.rate_limit("").max(5).per(secs(60)), 1, "invalid name"),
        ] {
            let waited = limit.wait(weight).await.unwrap_err();
            assert!(matches!(waited, Error::Invalid { .. }), "{waited}");
            let told = [limit.take(weight).await, limit.wait_for(weight, secs(1)).await];
            for error in told.map(Result::unwrap_err) {
                assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(why), "{error}");
            }
        }
        assert_eq!(limit().take(5).await.unwrap().remaining, 0, "nothing was taken");
    });
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_values_says_so() {
    let (_store, locks) = plain_client();
    let error = locks.rate_limit("x").max(1).per(secs(1)).take(1).await.unwrap_err();
    let said = "the plain store does not offer a rate limit: it keeps no values beside its locks";
    assert_eq!(error.to_string(), said);
}

#[test]
fn whoever_waits_is_let_through_when_it_may_be() {
    on_every_store_and_server(|a, b| async move {
        for rule in RULES {
            let period = ms(400);
            let [mine, theirs] =
                [&a, &b].map(|locks| locks.rate_limit("x").max(3).per(period).algorithm(rule));
            // Paused or real, as the runtime is.
            let clock = Clock::tokio();
            assert!(mine.take(3).await.unwrap().allowed);
            let start = clock.now();
            let both =
                [mine.clone(), theirs.clone()].map(|limit| tokio::spawn(async move { limit.wait(1).await }));
            for waiting in both {
                waiting.await.unwrap().unwrap();
            }
            assert!(clock.now().since(start) < period * 20, "{rule:?}");
            // A wait that cannot be long enough is none.
            while mine.take(1).await.unwrap().allowed {}
            let start = clock.now();
            let refused = theirs.wait_for(3, ms(1)).await.unwrap();
            assert!(!refused.allowed && refused.retry_after > ms(1), "{rule:?}: {refused:?}");
            assert!(clock.now().since(start) < refused.retry_after + period, "{rule:?}");
            // One that is, is.
            assert!(mine.wait_for(3, period * 50).await.unwrap().allowed, "{rule:?}");
        }
    });
}

/// Fifty tasks of one client wait, and the server is asked about as often as one alone would ask.
#[tokio::test]
async fn tasks_of_one_client_are_served_in_order_and_only_the_first_asks() {
    const TASKS: u64 = 50;
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let limit = locks.rate_limit("x").max(100).per(secs(1)).gcra(1);
    assert!(limit.take(1).await.unwrap().allowed);
    let asked = |server: &Server| {
        let calls = server.calls().unwrap();
        calls.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| *calls).sum::<u64>()
    };
    let before = asked(&server);
    let served = Arc::new(Mutex::new(Vec::new()));
    let tasks = (0..TASKS).map(|number| {
        let (limit, served) = (limit.clone(), served.clone());
        tokio::spawn(async move {
            limit.wait(1).await.unwrap();
            served.lock().unwrap().push(number);
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..TASKS).collect::<Vec<_>>(), "in order of arrival");
    let times = asked(&server) - before;
    // Each is refused once and then let through, or let through at once where its turn came late.
    assert!((TASKS..=2 * TASKS + 10).contains(&times), "asked {times} times for {TASKS}");
    println!("asked {times} times for {TASKS} tasks");
}

/// Sixteen clients, each of which asks about once a window: all are served, and nobody asks in between.
#[tokio::test]
async fn many_clients_that_wait_do_not_ask_all_the_time() {
    const CLIENTS: u64 = 16;
    let server = Server::start(Kind::Redis).unwrap();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(leasehold::connect(&server.url()).await.unwrap());
    }
    let limit = |locks: &Locks| locks.rate_limit("x").max(4).per(ms(500)).fixed_window();
    assert!(limit(&clients[0]).take(4).await.unwrap().allowed);
    server.forget_calls().unwrap();
    let waiting = clients.iter().map(|locks| {
        let limit = limit(locks);
        tokio::spawn(async move { limit.wait(1).await.unwrap() })
    });
    for waiting in waiting.collect::<Vec<_>>() {
        waiting.await.unwrap();
    }
    let calls = server.calls().unwrap();
    let times: u64 = calls.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| *calls).sum();
    // Of four in each of four windows, 16 + 16 + 12 + 8 + 4 ask; those who come a moment early ask again.
    println!("asked {times} times for {CLIENTS} clients");
    assert!((CLIENTS..=CLIENTS * 8).contains(&times), "asked {times} times");
}

#[test]
fn one_who_gives_up_makes_room_for_those_behind() {
    on_every_store(|a, _| async move {
        let limit = a.rate_limit("x").max(1).per(ms(300));
        assert!(limit.take(1).await.unwrap().allowed);
        let [first, second] =
            [limit.clone(), limit.clone()].map(|limit| tokio::spawn(async move { limit.wait(1).await }));
        tokio::task::yield_now().await;
        // Behind others its time ends, and it hears when they were told to come again.
        let refused = limit.wait_for(1, ms(5)).await.unwrap();
        assert!(!refused.allowed && refused.remaining == 0 && refused.retry_after <= ms(301), "{refused:?}");
        first.abort();
        second.await.unwrap().unwrap();
        assert!(!limit.take(1).await.unwrap().allowed, "the second has had it");
    });
}

#[test]
fn a_wait_that_is_kept_and_not_polled_does_not_block_the_tasks_behind_it() {
    on_every_store_and_server(|a, _| async move {
        let limit = a.rate_limit("x").max(1).per(ms(300));
        assert!(limit.take(1).await.unwrap().allowed);
        let mut kept = Box::pin(limit.wait(1));
        assert!(common::polled_once(kept.as_mut()).await.is_pending());
        for _ in 0..3 {
            let behind = tokio::time::timeout(secs(60), limit.wait(1)).await;
            behind.expect("it waits for a future that nobody polls").unwrap();
        }
        tokio::time::timeout(secs(60), kept).await.expect("polled again, it goes on").unwrap();
    });
}

#[test]
fn a_wait_that_was_answered_and_is_dropped_later_costs_no_other_task_its_place() {
    on_every_store(|a, _| async move {
        let limit = a.rate_limit("x").max(1).per(ms(100));
        assert!(limit.take(1).await.unwrap().allowed);
        let wait = || {
            tokio::spawn({
                let limit = limit.clone();
                async move { limit.wait(1).await }
            })
        };
        let first = wait();
        tokio::time::sleep(ms(5)).await;
        let mut kept = Box::pin(limit.wait(1));
        assert!(common::polled_once(kept.as_mut()).await.is_pending());
        first.await.unwrap().unwrap();
        // Behind the kept one: once it is through, the queue is empty, and the next task begins another.
        limit.wait(1).await.unwrap();
        tokio::time::sleep(ms(5)).await;
        let served = wait();
        tokio::time::sleep(ms(5)).await;
        let queued = wait();
        tokio::time::sleep(ms(5)).await;
        drop(kept);
        for task in [served, queued] {
            task.await.unwrap().unwrap();
        }
    });
}

#[test]
fn a_closed_client_waits_no_more() {
    on_every_store(|_, b| async move {
        let limit = b.rate_limit("x").max(1).per(secs(60));
        assert!(limit.take(1).await.unwrap().allowed);
        // The first, who sleeps, and one behind it.
        let waiting =
            [limit.clone(), limit.clone()].map(|limit| tokio::spawn(async move { limit.wait(1).await }));
        tokio::time::sleep(ms(5)).await;
        b.close().await;
        for waiting in waiting {
            assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
        }
        assert!(matches!(limit.take(1).await, Err(Error::Closed)));
    });
}

#[test]
fn code_that_is_not_async_has_the_same() {
    let locks = leasehold::blocking::connect("memory:").unwrap();
    let limit = locks.rate_limit("x").max(2).per(ms(100)).sliding_window();
    assert_eq!(limit.take(2).unwrap().remaining, 0);
    assert!(!limit.wait_for(2, ms(1)).unwrap().allowed);
    limit.wait(2).unwrap();
    let other = locks.rate_limit("x").max(2).per(ms(100));
    assert!(!other.clone().sliding_window().take(1).unwrap().allowed, "the same one");
    assert!(other.clone().fixed_window().take(1).unwrap().allowed);
    assert!(other.gcra(1).take(1).unwrap().allowed);
}

/// What somebody else keeps under the name is neither changed nor taken for a limit.
#[tokio::test]
async fn a_key_that_is_something_else_is_refused_and_left() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    for rule in ["fixed", "sliding", "gcra"] {
        let key = format!("rate:x:{rule}:1000");
        let limit = locks.rate_limit("x").max(5).per(secs(1));
        let limit = match rule {
            "fixed" => limit.fixed_window(),
            "sliding" => limit.sliding_window(),
            _ => limit.gcra(1),
        };
        for make in [vec!["SET", &key, "something"], vec!["RPUSH", &key, "something"]] {
            server.command(&["DEL", &key]).unwrap();
            server.command(&make).unwrap();
            let error = limit.take(1).await.unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}` is no rate limit")), "{error}");
            assert_eq!(server.command(&["EXISTS", &key]).unwrap().int(), Some(1));
        }
    }
    // A number without an end, as others may leave it, does not count for ever.
    let key = "rate:x:fixed:1000";
    server.command(&["DEL", key]).unwrap();
    server.command(&["SET", key, "5"]).unwrap();
    let limit = locks.rate_limit("x").max(5).per(secs(1)).fixed_window();
    let refused = limit.take(1).await.unwrap();
    assert!(!refused.allowed && refused.retry_after <= ms(1_001), "{refused:?}");
    assert!(limit.wait_for(1, secs(30)).await.unwrap().allowed);
}

// ---- clocks that are set ----

/// At random, with a clock that is set back again and again: by the time that has really passed, never more than there is in any
/// period, and nobody is told to wait for longer than a period.
#[test]
fn a_clock_that_is_set_back_lets_nothing_through_and_keeps_nobody_out() {
    let seeds = scaled(2_000);
    in_parallel(seeds, |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(set_back_at_random(seed));
    });
    println!("{seeds} seeds");
}

async fn set_back_at_random(seed: u64) {
    const MAX: u32 = 6;
    let period = secs(10);
    let clock = Clock::manual();
    // So that there is something to be set back from.
    clock.advance(secs(1_000_000));
    let locks = client(&Arc::new(Memory::new(clock.clone())), "a");
    let mut dice = Dice(seed);
    for (rule, most) in [
        (Algorithm::FixedWindow, 2 * MAX),
        (Algorithm::SlidingWindow, MAX),
        (Algorithm::Gcra { burst: 1 }, MAX),
        (Algorithm::Gcra { burst: 3 }, MAX + 2),
    ] {
        let limit = locks.rate_limit("x").max(MAX).per(period).algorithm(rule);
        let heaviest = if let Algorithm::Gcra { burst } = rule { burst } else { MAX };
        // Time that has passed, whatever the clock shows; and how much was taken when.
        let (mut passed, mut takes) = (Duration::ZERO, Vec::<(Duration, u32)>::new());
        for _ in 0..200 {
            match dice.below(10) {
                0 => clock.set_back(ms(dice.below(30_000))),
                1 => clock.set_back(secs(dice.below(3) * 3_600)),
                _ => {
                    let time = ms(dice.below(3_000));
                    clock.sleep_through(time);
                    passed += time;
                }
            }
            let weight = 1 + dice.below(heaviest.into()) as u32;
            let taken = limit.take(weight).await.unwrap();
            assert!(
                taken.retry_after <= period && taken.reset_after <= period + ms(1),
                "seed {seed}, {rule:?}: {taken:?}"
            );
            if taken.allowed {
                takes.push((passed, weight));
            }
            let within = takes.iter().filter(|(at, _)| *at + period > passed);
            let within: u32 = within.map(|(_, weight)| weight).sum();
            assert!(within <= most, "seed {seed}, {rule:?}: {within} in one period");
        }
        // As it was told, and not a moment later.
        let refused = loop {
            let taken = limit.take(heaviest).await.unwrap();
            if !taken.allowed {
                break taken;
            }
        };
        clock.sleep_through(refused.retry_after);
        assert!(limit.take(heaviest).await.unwrap().allowed, "seed {seed}, {rule:?}: {refused:?}");
    }
}

#[test]
fn a_server_whose_clock_is_set_lets_nothing_through_and_keeps_nobody_out() {
    let said = WallClock::new().test(child_test!(child_with_limits_on_a_moved_server));
    assert!(said.contains("every limit held and came back"), "{said}");
}

/// Does its work only as the child of the test above.
#[test]
fn child_with_limits_on_a_moved_server() {
    let Some(clock) = WallClock::mine() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start(Kind::Redis).unwrap();
        let locks = leasehold::connect(&format!("{}?timeout=5000", server.url())).await.unwrap();
        let period = secs(3);
        let limits = RULES.map(|rule| locks.rate_limit("x").max(3).per(period).algorithm(rule));
        let all = |weight| {
            let limits = limits.clone();
            async move {
                let takes = limits.iter().map(|limit: &RateLimit| limit.take(weight));
                join_all(takes).await.into_iter().map(Result::unwrap).collect::<Vec<Taken>>()
            }
        };
        assert!(all(3).await.iter().all(|taken| taken.allowed));
        clock.set(-3_600);
        let back = all(3).await;
        assert!(back.iter().all(|taken| !taken.allowed && taken.retry_after <= period + ms(1)), "{back:?}");
        // Not in an hour, but in a period.
        for (limit, rule) in limits.iter().zip(RULES) {
            assert!(limit.wait_for(3, secs(30)).await.unwrap().allowed, "{rule:?}");
        }
        // And nothing stays until the hour is over.
        let patience = std::time::Instant::now() + secs(30);
        while server.command(&["DBSIZE"]).unwrap().int() != Some(0) {
            assert!(std::time::Instant::now() < patience, "{:?}", server.command(&["KEYS", "*"]));
            tokio::time::sleep(ms(20)).await;
        }
        println!("every limit held and came back");
    });
}
