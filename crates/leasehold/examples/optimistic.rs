//! An optimistic update: eight tasks change one record at the same time; whoever is overtaken tries again. Run it with `cargo
//! run -p leasehold --example optimistic`, on the embedded store, or with a store's URL behind it (`-- memory:`).

use std::collections::BTreeMap;

use leasehold::{Error, Next};

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "file:".to_owned());
    let locks = leasehold::connect(&store).await?;
    let stock = locks.cells().cell::<BTreeMap<String, u32>>("example:stock");
    stock.set(&[("apples".to_owned(), 5), ("pears".to_owned(), 7)].into()).await?;

    let tasks: Vec<_> = (1..=8)
        .map(|buyer| {
            let stock = stock.clone();
            tokio::spawn(async move {
                // It may be called several times, so it only computes.
                let bought = stock.update(|there| match there {
                    Some(mut stock) if stock.get("apples").is_some_and(|apples| *apples > 0) => {
                        stock.entry("apples".to_owned()).and_modify(|apples| *apples -= 1);
                        Next::Set(stock)
                    }
                    _ => Next::Leave,
                });
                match bought.await {
                    Ok(bought) if bought.value.is_some() => {
                        println!("buyer {buyer}: an apple, at try {}", bought.tries)
                    }
                    Ok(_) => println!("buyer {buyer}: none is left"),
                    Err(error @ Error::Contended { .. }) => println!("buyer {buyer}: {error}"),
                    Err(error) => return Err(error),
                }
                Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    }

    println!("left: {:?}", stock.get().await?);
    stock.delete().await?;
    locks.close().await;
    Ok(())
}
