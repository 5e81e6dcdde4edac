//! The command on a quorum of real servers.

use std::time::{Duration, Instant};

use crate::common::{Home, said};
use leasehold_lab::{Kind, Server};

fn url(nodes: &[Server], parameters: &str) -> String {
    let places: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    format!("redlock:{}?timeout=3000{parameters}", places.join(","))
}

#[test]
fn every_command_works_on_a_quorum() {
    let home = Home::new();
    let nodes: Vec<Server> = (0..3).map(|_| Server::start(Kind::Redis).unwrap()).collect();
    let store = url(&nodes, "&quarantine=off");
    let store = store.as_str();

    assert_eq!(home.call(["run", "--store", store, "nightly", "--", "sh", "-c", "exit 7"]).0, 7);
    // A majority is enough for a lock and for `inspect`. Here all nodes have to answer.
    let on_all = url(&nodes, "&quarantine=off&quorum=3");
    let on_all = on_all.as_str();
    let (code, token, error) = home.call(["lock", "--store", on_all, "deploy", "--ttl", "50s"]);
    assert_eq!(code, 0, "{error}");
    let (code, held, _) = home.call(["inspect", "--store", on_all, "deploy"]);
    assert_eq!(code, 75);
    assert!(held.contains(", on 3 of 3 nodes"), "{held}");
    let (_, listed, _) = home.call(["ls", "--store", on_all, "--output", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["names"][0]["holders"][0]["nodes"]["held"], 3, "{listed}");
    assert!(listed["names"][0]["holders"][0]["since"].is_string(), "{listed}");
    // It keeps no values, so there is no record of a run; the run is as anywhere else.
    assert_eq!(
        home.call(["run", "--store", store, "--once-per", "20s", "hourly", "--", "sh", "-c", "exit 4"]).0,
        4
    );
    let (_, hourly, _) = home.call(["inspect", "--store", store, "hourly", "--output", "json"]);
    let hourly: serde_json::Value = serde_json::from_str(&hourly).unwrap();
    assert!(hourly["once"].is_null() && hourly["holders"][0].is_object(), "{hourly}");
    assert_eq!(home.call(["evict", "--store", store, "--yes", "hourly"]).0, 0);
    assert_eq!(
        home.call(["run", "--skip", "--store", store, "deploy", "--", "false"]).0,
        0,
        "held: nothing to do"
    );

    nodes[2].kill().unwrap();
    let (_, held, _) = home.call(["inspect", "--store", store, "deploy"]);
    assert!(held.contains(", on 2 of 3 nodes, a bare majority\n"), "{held}");
    let (code, told, _) = home.call(["doctor", "--store", store]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("2 of 3 nodes can vote, and 2 are needed: none may fail"), "{told}");
    assert!(told.contains("1 of 1 are held by a bare majority, `deploy` among them"), "{told}");
    let unlock = said(
        home.leasehold().args(["unlock", "--store", store, "deploy"]).env("LEASEHOLD_TOKEN", token.trim()),
    );
    assert_eq!(unlock.0, 0, "{unlock:?}");

    nodes[1].kill().unwrap();
    let (code, _, error) = home.call(["run", "--store", store, "nightly", "--", "true"]);
    assert_eq!(code, 69, "{error}");
    assert!(error.contains("2 of 3 needed, 1 reached; "), "{error}");
    for node in &nodes[1..] {
        assert!(error.contains(&format!("{}: ", node.addr())), "{error}");
    }
}

#[test]
fn on_new_nodes_it_says_how_long_to_wait_and_what_else_can_be_done() {
    let home = Home::new();
    let nodes: Vec<Server> = (0..3).map(|_| Server::start(Kind::Redis).unwrap()).collect();
    let (code, _, error) = home.call(["run", "--store", &url(&nodes, ""), "-n", "nightly", "--", "true"]);
    assert_eq!(code, 69, "{error}");
    assert!(
        error.contains("has no vote for another ") && error.contains("or write `?quarantine=off`"),
        "{error}"
    );
    let (code, told, _) = home.call(["doctor", "--store", &url(&nodes, "")]);
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("0 of 3 nodes can vote, and 2 are needed"), "{told}");
    let (code, _, error) = home.call(["lock", "--store", &url(&nodes, ""), "x", "--ttl", "10m"]);
    assert_eq!(code, 64, "{error}");
    assert!(error.contains("`max_ttl`"), "{error}");
}

#[test]
fn a_stalled_node_delays_no_command() {
    let home = Home::new();
    let nodes: Vec<Server> = (0..3).map(|_| Server::start(Kind::Redis).unwrap()).collect();
    let places: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    // A command that waits for the stalled node takes 20 s.
    let store = format!("redlock:{}?quarantine=off&timeout=20000", places.join(","));
    nodes[1].pause().unwrap();
    let quickly = |args: &[&str], expected: i32| {
        let start = Instant::now();
        let (code, told, error) = said(home.leasehold().args(args).env("LEASEHOLD_STORE", &store));
        let elapsed = start.elapsed();
        assert_eq!(code, expected, "{args:?}: {told}{error}");
        assert!(elapsed < Duration::from_secs(8), "{args:?} waited for the stalled node: {elapsed:?}");
        println!("{elapsed:>10.1?}  {}", args[0]);
        told
    };
    quickly(&["run", "nightly", "--", "true"], 0);
    let token = quickly(&["lock", "deploy", "--ttl", "50s"], 0);
    let held = quickly(&["inspect", "deploy"], 75);
    assert!(held.contains(", on 2 of 3 nodes"), "{held}");
    assert!(quickly(&["ls"], 0).contains("deploy"));
    quickly(&["run", "-n", "deploy", "--", "true"], 75);
    home.write("token", &token);
    quickly(&["unlock", "deploy", "--token-file", "token"], 0);
    quickly(&["evict", "--yes", "deploy"], 0);
}

#[test]
fn a_period_that_the_quorum_cannot_keep_is_refused_before_the_command_starts() {
    let home = Home::new();
    let nodes: Vec<Server> = (0..3).map(|_| Server::start(Kind::Redis).unwrap()).collect();
    let store = url(&nodes, "&quarantine=off");
    for (option, value, shown) in [("--once-per", "23h", "23 h"), ("--at-least", "2m", "2 min")] {
        let (code, out, told) =
            home.call(["run", "--store", &store, option, value, "x", "--", "echo", "ran"]);
        assert_eq!((code, out.as_str()), (64, ""), "{told}");
        let refused =
            format!("{option} {shown} is too long: this redlock store keeps a lock for at most 60 s; ");
        assert!(told.contains(&refused) && told.contains("`?max_ttl=`"), "{told}");
    }
    assert_eq!(home.call(["inspect", "--store", &store, "x"]).0, 0, "nothing was acquired");
    let once = ["run", "--store", &store, "--once-per", "50s", "x", "--", "echo", "ran"];
    assert_eq!(home.call(once).1, "ran\n");
    let (code, out, told) = home.call(once);
    assert_eq!((code, out.as_str()), (0, ""), "{told}");
    assert!(told.contains("was run by"), "{told}");
}
