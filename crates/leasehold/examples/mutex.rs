//! A lock held on a lease: taken, waited for, lost, rolled back. Run it with `cargo run -p leasehold --example mutex`, on the
//! embedded store, or with a store's URL behind it (`-- memory:`).

use std::time::Duration;

use leasehold::{Error, Event, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = Options::default()
        .on_event(|event| async move {
            if let Event::Lost { names, reason, .. } = event {
                println!("alert:   {names} was lost: {reason}");
            }
        })
        .connect(&store)
        .await?;

    // Take it, use it, let go. The fence goes to whatever is protected, with every write.
    let lease = locks.mutex("orders:42").ttl(Duration::from_secs(10)).lock().await?;
    println!("held:    {} with fence {}, valid for {:?}", lease.name(), lease.fence(), lease.remaining());

    // Somebody else wants it: now, or soon.
    let other = locks.mutex("orders:42").ttl(Duration::from_secs(10));
    println!("try:     {:?}", other.try_lock().await?.map(|lease| lease.fence()));
    if let Err(error @ Error::Busy { .. }) = other.clone().wait(Duration::from_millis(100)).lock().await {
        println!("busy:    {error}");
    }

    // Released, it goes to whoever is next in line.
    let (next, released) = tokio::join!(other.lock(), lease.release());
    released?;
    let next = next?;
    println!("next:    fence {}", next.fence());
    next.release().await?;

    // Work is cancelled the moment its lease is lost, and what it did can be rolled back.
    let work = locks.mutex("orders:42").ttl(Duration::from_millis(300)).run_or_rollback(
        |lease| {
            let locks = locks.clone();
            async move {
                println!("working: with fence {}", lease.fence());
                locks.evict("orders:42").await?; // an operator takes the lock away
                std::future::pending::<leasehold::Result<()>>().await
            }
        },
        |setback| async move { println!("undo:    what fence {} wrote", setback.fence) },
    );
    match work.await {
        Err(error @ Error::Lost { .. }) => println!("error:   {error}"),
        other => println!("unexpected: {other:?}"),
    }

    locks.close().await;
    Ok(())
}
