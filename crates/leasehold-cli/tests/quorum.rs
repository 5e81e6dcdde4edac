//! The command on a quorum of real servers.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, said};
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
    let (code, token, error) = home.call(["lock", "--store", store, "deploy", "--ttl", "50s"]);
    assert_eq!(code, 0, "{error}");
    let (code, held, _) = home.call(["inspect", "--store", store, "deploy"]);
    assert_eq!(code, 75);
    assert!(held.contains(", on 3 of 3 nodes\n"), "{held}");
    let (_, listed, _) = home.call(["ls", "--store", store, "--output", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["holders"][0]["nodes"]["held"], 3, "{listed}");
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
