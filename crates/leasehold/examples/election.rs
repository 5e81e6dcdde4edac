//! An election: three candidates, one leader at a time, and somebody who looks on. Run it with
//! `cargo run -p leasehold --example election`, on the embedded store, or with a store's URL behind it (`-- memory:`).

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    let election = locks.election("scheduler").look_every(Duration::from_millis(20));

    let mut changes = election.leader_changed();
    let looking_on = tokio::spawn(async move {
        loop {
            match changes.next().await {
                Ok(Some(leader)) => println!("seen: {} leads, term {:?}", leader.owner, leader.term),
                Ok(None) => println!("seen: nobody leads"),
                Err(error) => println!("seen: {error}"),
            }
        }
    });

    // Each leads for a while and resigns; the fence of its lease is its term, and only rises.
    let candidates = ["web-1", "web-2", "web-3"].map(|name| {
        let campaign = election.clone().owner(name).campaign();
        tokio::spawn(async move {
            let leader = campaign.await?;
            println!("{name} leads, term {}", leader.term());
            // What a leader does, it does for as long as this lasts.
            tokio::select! {
                loss = leader.lost() => println!("{name} leads no more: {loss}"),
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
            leader.resign().await
        })
    });
    for candidate in candidates {
        if let Ok(end) = candidate.await {
            end?;
        }
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    looking_on.abort();

    locks.close().await;
    Ok(())
}
