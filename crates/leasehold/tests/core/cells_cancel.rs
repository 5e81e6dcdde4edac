//! Updates that are cut off: each has happened or it has not, once at most; and no connection is used again on which something
//! is still watched, or begun.
#![cfg(all(feature = "redis", feature = "json"))]

use leasehold_testkit as common;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use common::{Dice, scaled, secs};
use leasehold_lab::{Client, Kind, Server};

/// Who is connected, and in what state: `x` has begun a transaction, `d` watches something that has changed.
fn flags(server: &Server) -> BTreeMap<String, String> {
    let list = server.command(&["CLIENT", "LIST"]).unwrap();
    let field = |line: &str, name: &str| {
        let found = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        found.unwrap().to_owned()
    };
    list.text().unwrap().lines().map(|line| (field(line, "id"), field(line, "flags"))).collect()
}

/// Those who have something watched or begun: what may be watched is touched, and then it shows.
fn dirty(server: &Server) -> Vec<String> {
    server.command(&["APPEND", "cell:x", " "]).unwrap();
    let all = flags(server).into_iter();
    all.filter(|(_, flags)| flags.contains(['x', 'd'])).map(|(id, flags)| format!("{id}: {flags}")).collect()
}

/// What was cut off is closed; the server has to hear of it.
async fn none_is_dirty(server: &Server) {
    let start = tokio::time::Instant::now();
    loop {
        match dirty(server) {
            none if none.is_empty() => return,
            some => assert!(start.elapsed() < secs(10), "left behind: {some:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// That it is seen where it is so.
#[test]
fn a_connection_that_is_left_dirty_is_found_out() {
    let server = Server::start(Kind::Redis).unwrap();
    assert!(dirty(&server).is_empty());
    for word in [&["WATCH", "cell:x"][..], &["MULTI"]] {
        let mut client = Client::tcp(server.addr()).unwrap();
        assert!(client.command(word).unwrap().is_ok());
        assert_eq!(dirty(&server).len(), 1, "{word:?}");
        drop(client);
        let start = std::time::Instant::now();
        while !dirty(&server).is_empty() {
            assert!(start.elapsed() < secs(10));
        }
    }
}

/// Polled so often, and then dropped, after a moment in which what it has sent may arrive.
async fn cut_off<T>(polls: u64, after: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => {
            std::thread::sleep(after);
            Poll::Ready(None)
        }
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_that_is_cut_off_leaves_no_connection_dirty_and_counts_once_or_not() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&format!("{}?timeout=20000", server.url())).await.unwrap();
    let ids = locks.cells().cell::<Vec<u64>>("x").tries(1_000);
    ids.set(&Vec::new()).await.unwrap();
    let cuts = scaled(10_000);
    let (mut dice, mut cut, mut done) = (Dice(7), Vec::new(), Vec::new());
    let mut planned = 0;
    for id in 0.. {
        if cut.len() as u64 == cuts {
            break;
        }
        // Before each, one that is not cut off: it gets the connection of the one before, if that was given back, and leaves
        // one that is ready.
        ids.update(|seen| seen.unwrap()).await.unwrap();
        let mut looked = false;
        let update = ids.update(|seen| {
            looked = true;
            let mut seen = seen.unwrap();
            seen.push(id);
            seen
        });
        match cut_off(dice.below(4), Duration::from_micros(dice.below(200)), update).await {
            Some(updated) => {
                updated.unwrap();
                done.push(id);
            }
            None => cut.push(id),
        }
        planned += u64::from(looked && cut.last() == Some(&id));
        if id % 50 == 49 {
            // What was on its way when it was cut off has arrived by then.
            none_is_dirty(&server).await;
        }
    }
    none_is_dirty(&server).await;
    let kept = ids.get().await.unwrap().unwrap();
    let count = |id: u64| kept.iter().filter(|kept| **kept == id).count();
    assert!(done.iter().all(|id| count(*id) == 1), "what was answered has happened, once");
    assert!(cut.iter().all(|id| count(*id) <= 1), "what was cut off has not happened twice");
    let late = cut.iter().filter(|id| count(**id) == 1).count();
    assert_eq!(kept.len(), done.len() + late, "and nothing else has");
    println!(
        "{} cut off ({planned} of them after the look; {late} happened all the same), {} not",
        cut.len(),
        done.len()
    );
    assert!(planned > cuts / 10 && planned < cuts && done.len() as u64 > cuts / 50, "that proves little");
    // As many connections as ever, and no more.
    let own = flags(&server).len();
    assert!(own <= 2 + 4 + 1, "{own} connections");
}
