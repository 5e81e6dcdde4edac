//! `leasehold latch`: counted down and waited for by processes, some of which die.

use crate::common::{Home, Running, until};
use leasehold_lab::{Kind, Server};
use rustix::process::Signal;

fn each_store(claim: impl Fn(&Home)) {
    let home = Home::in_memory();
    claim(&home);
    for kind in Kind::ALL {
        let (home, server) = (Home::in_memory(), Server::start(kind).unwrap());
        home.write("leasehold.toml", &format!("store = \"{}\"", server.url()));
        claim(&home);
        let left = server.command(&["EXISTS", "{latch:ready}:watch", "{latch:x}:watch"]).unwrap();
        assert_eq!(left.int(), Some(0), "whoever watched was told, and forgotten");
    }
}

fn is_over(running: &mut Running) -> bool {
    running.child.try_wait().unwrap().is_some()
}

#[test]
fn workers_count_and_whoever_waits_goes_on_when_the_last_has() {
    each_store(|home| {
        assert_eq!(
            home.run("latch show ready 3"),
            (0, "ready is closed: 3 of 3 missing\n".into(), String::new())
        );
        let mut waiting = [(); 3].map(|()| home.start(["-q", "latch", "wait", "ready", "3"]));
        assert_eq!(home.run("latch down ready 3").1, "ready is closed: 2 of 3 missing\n");
        // A worker that is started again, and one that says it twice, count once.
        for _ in 0..2 {
            assert_eq!(home.run("latch down ready 3 --as worker-2").1, "ready is closed: 1 of 3 missing\n");
        }
        let (code, out, told) = home.run("latch wait ready 3 -w 0.2");
        assert_eq!((code, out.as_str()), (75, ""), "{told}");
        assert!(told.contains("`ready` is closed: 1 of 3 missing; waited 200 ms"), "{told}");
        assert_eq!(home.run("latch wait ready 3 -n").0, 75);
        assert!(waiting.iter_mut().all(|running| !is_over(running)));
        let (code, out, _) = home.run("latch down ready 3 --output json");
        let told: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &told["missing"], &told["open"]), (0, &0.into(), &true.into()));
        for running in waiting {
            assert_eq!(running.end(), (0, String::new(), String::new()));
        }
        assert_eq!(home.run("latch wait ready 3 -n").0, 0, "it stays open");
        let (code, _, told) = home.run("latch down ready 2");
        assert_eq!(code, 64);
        assert!(told.contains("`ready` was made for 3"), "{told}");
        assert_eq!(home.run("latch reset ready").1, "ready is closed, and nobody has counted\n");
        assert_eq!(home.run("latch show ready 2").1, "ready is closed: 2 of 2 missing\n");
    });
}

/// Killed waiters leave nothing that anybody waits for, and killed counters have counted or have not.
#[test]
fn the_death_of_waiters_and_counters_costs_nobody_anything() {
    each_store(|home| {
        const COUNT: u32 = 12;
        let count = COUNT.to_string();
        let mut survivor = home.start(["-q", "latch", "wait", "x", &count]);
        let doomed = [(); 4].map(|()| home.start(["latch", "wait", "x", &count]));
        for (number, mut waiter) in doomed.into_iter().enumerate() {
            // Some are hit in the middle of connecting, some while they wait.
            std::thread::sleep(std::time::Duration::from_millis(10 * number as u64));
            waiter.signal(Signal::KILL);
            until(|| is_over(&mut waiter), "it to die");
        }
        for number in 0..COUNT {
            assert!(!is_over(&mut survivor), "{number} cannot be enough");
            let id = format!("worker-{number}");
            let mut counter = home.start(["latch", "down", "x", &count, "--as", &id]);
            std::thread::sleep(std::time::Duration::from_millis(3 * u64::from(number)));
            let _ = counter.child.kill();
            until(|| is_over(&mut counter), "it to die");
            // Started again, as whoever looks after it would.
            assert_eq!(home.call(["latch", "down", "x", &count, "--as", &id]).0, 0);
            let missing = format!("x is closed: {} of {COUNT} missing\n", COUNT - number - 1);
            let missing = if number + 1 == COUNT { "x is open\n".to_owned() } else { missing };
            assert_eq!(home.call(["latch", "show", "x", &count]).1, missing);
        }
        assert_eq!(survivor.end(), (0, String::new(), String::new()));
    });
}

#[test]
fn waiting_for_a_latch_without_a_terminal_is_a_line() {
    let home = Home::new();
    let (code, _, told) = home.run("latch wait ready 2 -w 600ms");
    assert_eq!(code, 75, "{told}");
    assert!(told.starts_with("leasehold: waiting for ready: 2 of 2 missing\n"), "{told}");
    assert!(!home.run("latch wait ready 2 -w 600ms --quiet").2.contains("waiting for"));
}
