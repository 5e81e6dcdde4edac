//! The table of `docs/kinds.md`, held against real stores: what it says is offered works, and what is not is refused with the
//! reason it gives.
#![cfg(all(feature = "redis", feature = "file", target_os = "linux"))]

use leasehold_testkit as common;

use std::collections::BTreeMap;

use common::quorum_nodes::{CALM, QuorumNodes};
use common::stores::{in_line, on_a_server, on_every_store_and_server};
use common::{home_in_memory, ms, secs};
use leasehold::{Error, Locks, Result, Status};
use leasehold_lab::{Kind, Server};

const PAGE: &str = include_str!("../../../../docs/kinds.md");

/// What the page says: kind → what stands in the column of each store.
fn table() -> BTreeMap<String, Vec<String>> {
    let rows = PAGE.lines().skip_while(|line| !line.starts_with("| | `memory:`")).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
            (cells.next().unwrap(), cells.collect())
        })
        .collect()
}

/// What a store does when it is asked, in the words of the page.
async fn found(locks: &Locks, kind: &str) -> String {
    let can = locks.capabilities();
    let tried: Result<()> = match kind {
        "mutex" => locks.mutex("x").lock().await.map(drop),
        "readers" => locks.rwlock("x").read().await.map(drop),
        "writers" => locks.rwlock("x").write().await.map(drop),
        "downgrade, upgrade" => converted(locks).await,
        "semaphore" => locks.semaphore("x", 2).acquire().await.map(drop),
        "all" => locks.all(["x", "y"]).lock().await.map(drop),
        "owner" => re_entered(locks).await,
        "once" => once(locks).await,
        "election" => locks.election("x").campaign().await.map(drop),
        "latch" => latched(locks).await,
        "rate limit" => locks.rate_limit("x").max(1).per(secs(60)).take(1).await.map(drop),
        "in order of arrival" => return said(can.fair),
        "fences that rise" => return said(can.fenced),
        other => panic!("the page speaks of `{other}`, which nobody here knows"),
    };
    locks.settled().await;
    // What it says of itself is what it does.
    let says = match kind {
        "readers" => can.shared,
        "downgrade, upgrade" => can.conversions,
        "semaphore" => can.permits,
        "latch" | "rate limit" => can.cells,
        "all" => can.several_names || !can.fences_per_name,
        _ => true,
    };
    match tried {
        Ok(()) => {
            assert!(says, "{} does {kind}, and does not say so", can.store);
            match (kind, can.several_names) {
                ("all", true) => "in one step".to_owned(),
                ("all", false) => "one by one".to_owned(),
                _ => "yes".to_owned(),
            }
        }
        Err(Error::Unsupported { why, store, .. }) => {
            assert!(!says && store == can.store, "{store} says that it does {kind}, and does not");
            format!("no: {}", why.split(';').next().unwrap())
        }
        Err(error) => panic!("{kind} on {}: {error}", can.store),
    }
}

fn said(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}

async fn converted(locks: &Locks) -> Result<()> {
    let reader = locks.rwlock("x").write().await?.downgrade().await?;
    reader.upgrade().await?.granted().expect("it is alone").release().await
}

async fn re_entered(locks: &Locks) -> Result<()> {
    let owner = locks.owner("me");
    let (one, two) = (owner.mutex("x").lock().await?, owner.mutex("x").lock().await?);
    assert_eq!(one.fence(), two.fence());
    one.release().await?;
    two.release().await
}

async fn once(locks: &Locks) -> Result<()> {
    let once = locks.once("x").per(secs(60));
    assert!(once.run(async |_| ()).await?.is_some() && once.run(async |_| ()).await?.is_none());
    locks.evict("x").await.map(drop)
}

async fn latched(locks: &Locks) -> Result<()> {
    let latch = locks.latch("x", 1);
    latch.count_down().await?;
    latch.wait().await?;
    latch.reset().await
}

#[tokio::test]
async fn the_page_says_what_the_stores_do() {
    let home = home_in_memory("kinds");
    let server = Server::start(Kind::Redis).unwrap();
    let fleet = QuorumNodes::start(3);
    let stores = [
        "memory:".to_owned(),
        format!("file:{}", home.path().display()),
        server.url(),
        format!("{}?scripts=off", server.url()),
        fleet.url(CALM),
    ];
    let table = table();
    assert_eq!(table.len(), 13, "{table:?}");
    for (column, url) in stores.iter().enumerate() {
        let locks = leasehold::connect(url).await.unwrap();
        for (kind, cells) in &table {
            assert_eq!(cells.len(), stores.len(), "{kind}: {cells:?}");
            assert_eq!(cells[column], found(&locks, kind).await, "{kind} on store {column}");
        }
        locks.close().await;
    }
}

/// Since when, by the store's clock: not less than the test slept, and not more than it took (with room for two clocks).
async fn status_says_since_when(a: Locks, b: Locks, has_line: bool) {
    let start = tokio::time::Instant::now();
    let lease = a.mutex("x").lock().await.unwrap();
    let first = a.inspect("x").await.unwrap().unwrap().holders[0].held_for.expect("since when it is held");
    assert!(first <= start.elapsed() + secs(1), "{first:?}");
    let waiting = tokio::spawn(b.mutex("x").lock());
    let status = match has_line {
        true => in_line(&a, "x", 1).await,
        false => a.inspect("x").await.unwrap().unwrap(),
    };
    let came = tokio::time::Instant::now();
    tokio::time::sleep(ms(100)).await;
    let later = a.inspect("x").await.unwrap().unwrap();
    let since = |status: &Status| status.holders[0].held_for.unwrap();
    assert!(since(&later) >= since(&status) + ms(90), "{status:?} {later:?}");
    assert!(since(&later) <= start.elapsed() + secs(1), "{later:?}");
    if has_line {
        let waited = later.waiters[0].waiting_for.expect("since when it waits");
        assert!(waited >= came.elapsed() - ms(90) && waited <= start.elapsed() + secs(1), "{later:?}");
    }
    // A renewal changes nothing about it.
    lease.extend(secs(60)).await.unwrap();
    assert!(since(&a.inspect("x").await.unwrap().unwrap()) >= since(&later));
    lease.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[test]
fn a_status_says_since_when_a_name_is_held_and_waited_for() {
    on_every_store_and_server(|a, b| status_says_since_when(a, b, true));
    on_a_server("?scripts=off", |a, b| status_says_since_when(a, b, false));
}

#[tokio::test]
async fn a_status_of_a_quorum_says_since_when_a_name_is_held_and_waited_for() {
    let fleet = QuorumNodes::start(3);
    let a = leasehold::connect(&fleet.url(CALM)).await.unwrap();
    let b = leasehold::connect(&fleet.url(CALM)).await.unwrap();
    status_says_since_when(a, b, true).await;
}
