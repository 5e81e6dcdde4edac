//! `leasehold run` with several names.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, Running};

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
