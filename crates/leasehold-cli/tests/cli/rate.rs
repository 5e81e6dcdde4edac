//! `leasehold rate`: only so many get through, of processes that know nothing of each other.

use std::time::{Duration, Instant};

use crate::common::Home;
use leasehold_lab::{Kind, Server};
use serde_json::Value;

fn each_store(claim: impl Fn(&Home)) {
    claim(&Home::in_memory());
    for kind in Kind::ALL {
        let (home, server) = (Home::in_memory(), Server::start(kind).unwrap());
        home.write("leasehold.toml", &format!("store = \"{}\"", server.url()));
        claim(&home);
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

#[test]
fn of_many_processes_only_so_many_get_through() {
    each_store(|home| {
        for algorithm in ["sliding", "fixed"] {
            let args = ["rate", "x", "-n", "--per", "1h", "--max", "7", "--algorithm", algorithm];
            let running: Vec<_> = (0..15).map(|_| home.start(args)).collect();
            let codes: Vec<i32> = running.into_iter().map(|running| running.end().0).collect();
            assert_eq!(codes.iter().filter(|code| **code == 0).count(), 7, "{algorithm}: {codes:?}");
            assert_eq!(codes.iter().filter(|code| **code == 75).count(), 8, "{algorithm}: {codes:?}");
        }
    });
}

#[test]
fn it_says_what_remains_and_when_to_come_again() {
    each_store(|home| {
        let line = "rate mails --per 1h --max 3 -n";
        assert_eq!(home.run(line), (0, String::new(), String::new()));
        let (code, out, _) = home.run(&format!("{line} --weight 2 --output json"));
        let told = json(&out);
        assert_eq!(code, 0);
        assert_eq!((&told["allowed"], &told["remaining"]), (&true.into(), &0.into()), "{told}");
        assert_eq!(told["retry_after_ms"], 0);
        let (code, out, told) = home.run(line);
        assert_eq!((code, out.as_str()), (75, ""));
        let says = "leasehold: `mails` lets through 3 in 60 min, and not now; come back in 60 min, or wait for it (longer) with";
        assert!(told.starts_with(says), "{told}");
        let (code, out, told) = home.run(&format!("{line} -E 3 --output json -- echo hi"));
        assert_eq!(code, 3);
        assert!(told.starts_with(says), "{told}");
        let told = json(&out);
        assert_eq!((&told["allowed"], &told["error"]["kind"]), (&false.into(), &"limited".into()), "{told}");
        let retry_ms = told["retry_after_ms"].as_u64().unwrap();
        assert!((3_500_000..=3_600_001).contains(&retry_ms), "{told}");
        assert!(told["reset_after_ms"].as_u64().unwrap() >= retry_ms, "{told}");
        // A wait that cannot be long enough is none; and other rules and periods are other limits.
        assert_eq!(home.run("rate mails --per 1h --max 3 -w 10").0, 75);
        assert_eq!(home.run("rate mails --per 2h --max 3 -n").0, 0);
        assert_eq!(home.run("rate mails --per 1h --max 3 --algorithm gcra -n").0, 0);
        // Twice as much: what was taken stays taken.
        assert_eq!(home.run("rate mails --per 1h --max 6 --weight 3 -n").0, 0);
        assert_eq!(home.run("rate mails --per 1h --max 6 -n").0, 75);
    });
}

#[test]
fn whoever_waits_gets_through_in_time() {
    each_store(|home| {
        let since = Instant::now();
        for number in 0..5 {
            let (code, out, told) = home.run("rate x --per 1s --max 2 -- echo hi");
            assert_eq!((code, out.as_str()), (0, "hi\n"), "{number}: {told}");
        }
        assert!(since.elapsed() >= Duration::from_secs(2), "five of two in a second: {:?}", since.elapsed());
        let (code, _, told) = home.run("rate x --per 1s --max 2 --weight 2 -w 30");
        assert_eq!(code, 0, "{told}");
    });
}

#[test]
fn it_becomes_the_command() {
    let home = Home::in_memory();
    let rate = "rate x --per 1h --max 1000 -n";
    assert_eq!(home.call(["rate", "x", "--per", "1h", "--max", "1000", "--", "sh", "-c", "exit 7"]).0, 7);
    assert_eq!(home.call(["rate", "x", "--per", "1h", "--max", "1000", "-c", "exit 8"]).0, 8);
    assert_eq!(home.run(&format!("{rate} --output json -- echo hi")).1, "hi\n", "its output is its own");
    let (code, _, told) = home.run(&format!("{rate} -- no_such_program"));
    assert_eq!(code, 127);
    assert!(told.contains("cannot run `no_such_program`"), "{told}");
    home.write("text", "text");
    assert_eq!(home.run(&format!("{rate} -- ./text")).0, 126);
    // It has the very process, and what is secret is not handed on.
    let running = home.start_with([], |command| {
        command.env("LEASEHOLD_PASSWORD", "secret").env("LEASEHOLD_TOKEN", "secret").args([
            "rate",
            "x",
            "--per",
            "1h",
            "--max",
            "1000",
            "--store",
            "file:store",
            "-c",
            "echo $$; env",
        ]);
    });
    let pid = running.child.id();
    let (code, out, told) = running.end();
    assert_eq!(code, 0, "{told}");
    assert!(!out.contains("secret"), "{out}");
    assert!(out.starts_with(&format!("{pid}\n")), "{out}");
}
