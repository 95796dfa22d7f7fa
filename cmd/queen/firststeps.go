package main

import "strings"

// firstSteps is what `queen dev` prints: three lines for a shell that push,
// pop and acknowledge a message. They need nothing but curl, and each works as
// it is pasted, because the third takes what it needs from the second's answer.
func firstSteps(url string) string {
	return strings.ReplaceAll(`
The broker is ready at {url}. Try it in another terminal:

# push
curl -sS {url}/api/v1/push -d '{"items":[{"queue":"orders","payload":{"orderId":501}}]}'; echo

# pop
POP=$(curl -sS '{url}/api/v1/pop/queue/orders?consumerGroup=billing&subscriptionMode=all&wait=true'); printf '%s\n' "$POP"

# ack
curl -sS {url}/api/v1/ack -d "{\"consumerGroup\":\"billing\",\"status\":\"completed\",$(printf '%s' "$POP" | grep -oE '"(transactionId|partitionId|leaseId)":"[^"]*"' | sort -u | paste -sd, -)}"; echo

Stop with Ctrl-C; the data stays.
`, "{url}", url)
}
