//! A write under a fence: a holder sleeps through the end of its lease, and wakes to write; what its successor wrote stays. Run
//! it with `cargo run -p leasehold --example fenced`, on the embedded store, or with a store's URL behind it (`-- memory:`).

use leasehold::Error;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    let report = locks.cells().cell::<String>("example:report");

    let sleeper = locks.mutex("example:report").lock().await?;
    // It falls asleep here, and somebody else is given the lock.
    locks.evict("example:report").await?;
    let successor = locks.mutex("example:report").lock().await?;
    report.set_fenced(successor.fence(), &"by the successor".to_owned()).await?;

    match report.set_fenced(sleeper.fence(), &"by the sleeper".to_owned()).await {
        Err(error @ Error::Stale { .. }) => println!("refused: {error}"),
        other => println!("that should not be: {other:?}"),
    }
    println!("the report is {:?}", report.get().await?);

    report.delete_fenced(successor.fence()).await?;
    successor.release().await?;
    locks.close().await;
    Ok(())
}
