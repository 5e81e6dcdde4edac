//! `leasehold run` with several names, and once in a period.

use crate::common::{Home, Running, until};

fn is_held(home: &Home, name: &str) -> bool {
    home.call(["inspect", name]).0 == 75
}

/// Starts a holder of `x` and `y` that ends when its standard input does.
fn holder_of_both(home: &Home) -> Running {
    let mut holder =
        home.start(["run", "y", "--also", "x", "--", "sh", "-c", "echo ready $LEASEHOLD_NAME; cat"]);
    assert_eq!(holder.line(), "ready y");
    holder
}

#[test]
fn several_names_are_held_all_or_none() {
    let home = Home::in_memory();
    let holder = holder_of_both(&home);
    assert!(is_held(&home, "x") && is_held(&home, "y"));
    let (code, _, said) = home.run("run -n x -- true");
    assert_eq!(code, 75, "{said}");
    let (code, _, said) = home.run("run -w 50ms a --also y --also b -- true");
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("`a`, `b`, `y` is held by "), "{said}");
    assert!(!is_held(&home, "a") && !is_held(&home, "b"), "a part of it is left");
    let (code, out, said) = holder.end();
    assert_eq!((code, out.as_str(), said.as_str()), (0, "", ""));
    assert!(!is_held(&home, "x") && !is_held(&home, "y"));
    assert_eq!(home.run("run y --also x --also y -- true").0, 0, "twice is no matter");
}

#[test]
fn whoever_loses_one_of_them_has_lost_all() {
    let home = Home::in_memory();
    let mut holder =
        home.start(["run", "--ttl", "3s", "y", "--also", "x", "--", "sh", "-c", "echo ready; sleep 1000"]);
    assert_eq!(holder.line(), "ready");
    assert_eq!(home.run("evict --yes x").0, 0);
    let (code, _, said) = holder.end();
    assert_eq!(code, 79, "{said}");
    assert!(said.contains("the lease on `x`, `y` was lost"), "{said}");
    assert!(!is_held(&home, "x") && !is_held(&home, "y"));
}

#[test]
fn several_names_are_had_alone() {
    let home = Home::in_memory();
    for line in ["run -s x --also y -- true", "run --permits 2 x --also y -- true"] {
        let (code, _, said) = home.run(line);
        assert_eq!(code, 64, "{said}");
        assert!(said.contains("cannot be used with"), "{said}");
    }
    let (code, _, said) = home.run("run x --also {} -- true");
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("invalid name"), "{said}");
}

#[test]
fn once_in_a_period_whoever_comes_first() {
    let home = Home::in_memory();
    let (code, out, said) = home.call(["run", "--once-per", "2s", "x", "--", "sh", "-c", "echo ran; exit 3"]);
    assert_eq!((code, out.as_str(), said.as_str()), (3, "ran\n", ""));
    for _ in 0..3 {
        let (code, out, said) = home.run("run --once-per 2s x -- echo again");
        assert_eq!((code, out.as_str()), (0, ""));
        assert!(
            said.contains("`x` was run by ") && said.contains("already, or is being run: nothing to do"),
            "{said}"
        );
    }
    assert_eq!(home.run("run -q --once-per 2s x -- echo again"), (0, String::new(), String::new()));
    // For as long as was said, from where it began, and no longer.
    until(|| home.run("run --once-per 2s x -- echo next").1 == "next\n", "the next period");
}

#[test]
fn a_run_that_is_under_way_is_not_run_a_second_time_and_a_dead_one_does_not_count() {
    let home = Home::in_memory();
    let mut first =
        home.start(["run", "--once-per", "10m", "x", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(first.line(), "ready");
    let (code, out, said) = home.run("run --once-per 10m x -- echo again");
    assert_eq!((code, out.as_str()), (0, ""), "{said}");
    // With its machine, it would be its TTL.
    first.child.kill().unwrap();
    until(|| home.run("run --once-per 10m x -- echo again").1 == "again\n", "the dead one to be replaced");
}

#[test]
fn once_in_a_period_excludes_what_makes_no_sense_beside_it() {
    let home = Home::in_memory();
    for also in ["--skip", "-n", "-w 1", "-E 3", "--at-least 1s", "-s", "--permits 2"] {
        let (code, _, said) = home.run(&format!("run --once-per 1h {also} x -- true"));
        assert_eq!(code, 64, "{also}: {said}");
    }
    let (code, _, said) = home.run("run --once-per 0 x -- true");
    assert_eq!(code, 64, "{said}");
}
