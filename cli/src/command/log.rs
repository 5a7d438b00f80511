//! `log`.

use std::collections::VecDeque;

use cloche_proto::agent::v1alpha1::LogRequest;

use super::Context;
use crate::args::Log;
use crate::connection::{Outage, is_broken};
use crate::error::Error;
use crate::session::{Received, State};
use crate::terminal::{Sink, notice};

/// Prints what a command has written.
pub(super) async fn log(context: &Context, args: &Log) -> Result<(), Error> {
    let mut sink = Sink::start().map_err(Error::Runtime)?;
    let outcome = copy(context, args, &sink).await;
    // First, so that an error's message comes after the output.
    sink.finish(&mut VecDeque::new()).await?;
    outcome
}

async fn copy(context: &Context, args: &Log, sink: &Sink) -> Result<(), Error> {
    let mut state = State::reader(args.tail_bytes.is_some());
    let mut outage: Option<Outage> = None;
    let mut tail = args.tail_bytes.unwrap_or(0);
    let operation = format!("read the log of sandbox {}", args.name);
    loop {
        let request = LogRequest {
            key: Some(context.key(&args.name)),
            command_id: args.command_id.clone().unwrap_or_default(),
            follow: args.follow,
            tail_bytes: tail,
            uid: String::new(),
        };
        let replies = match context.agent.connect().await {
            Ok(mut client) => client.log(request).await,
            Err(problem) if outage.is_none() => return Err(problem),
            Err(problem) => Err(tonic::Status::unavailable(problem.to_string())),
        };
        let broken = match replies {
            Err(status) => status,
            Ok(response) => {
                let mut replies = response.into_inner();
                loop {
                    let reply = match replies.message().await {
                        Ok(Some(reply)) => reply,
                        Ok(None) => return Ok(()),
                        Err(status) => break status,
                    };
                    outage = None;
                    // Sent again from the beginning after a break: what was seen is dropped by its offset.
                    tail = 0;
                    let received = state.receive(reply).map_err(|message| Error::Wrong {
                        operation: operation.clone(),
                        message,
                    })?;
                    let Received::Output { stream, lost, data } = received else {
                        continue;
                    };
                    let gap =
                        (lost > 0).then(|| notice(&format!("{lost} bytes are no longer kept")));
                    let data = (!data.is_empty()).then_some((stream, data));
                    for piece in gap.into_iter().chain(data) {
                        match sink.room().await {
                            Some(room) => drop(room.send(piece)),
                            // Why, `finish` tells.
                            None => return Ok(()),
                        }
                    }
                }
            }
        };
        if !is_broken(&broken) {
            return Err(Error::refused(operation, broken));
        }
        let outage = outage.get_or_insert_with(Outage::begin);
        if outage.is_too_long() {
            return Err(Error::Lost {
                operation,
                seconds: outage.seconds(),
                last: broken.message().to_owned(),
                left: "the log may go on".to_owned(),
            });
        }
        tokio::time::sleep(outage.pause()).await;
    }
}
