//! Several names at once, all or none: a transfer between two accounts, by many tasks, in both directions. Run it with
//! `cargo run -p leasehold --example all`, on the embedded store, or with a store's URL behind it (`-- memory:`).

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;

    // One says 7 and 4, the other 4 and 7: taken one by one, each would soon hold one and wait for the other.
    let transfer = async |from: &str, to: &str| -> leasehold::Result<()> {
        for _ in 0..3 {
            let lease = locks.all([from, to]).lock().await?;
            println!("{from} → {to}: {} with fence {}", lease.names(), lease.fence());
            lease.release().await?;
        }
        Ok(())
    };
    let (there, back) = tokio::join!(transfer("account:7", "account:4"), transfer("account:4", "account:7"));
    there?;
    back?;

    // All or none: while one of them is taken, the other stays free.
    let held = locks.mutex("account:4").lock().await?;
    let both = locks.all(["account:4", "account:7"]).try_lock().await?;
    println!("both:  {:?}", both.map(|lease| lease.fence()));
    println!("other: {:?}", locks.mutex("account:7").try_lock().await?.map(|lease| lease.fence()));
    held.release().await?;

    locks.close().await;
    Ok(())
}
