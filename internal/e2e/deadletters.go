package e2e

import (
	"encoding/json"
	"net/http"
)

// DeadLetter is one record of the dead-letter list.
type DeadLetter struct {
	ID            string          `json:"id"`
	MessageID     string          `json:"messageId"`
	TransactionID string          `json:"transactionId"`
	PartitionID   string          `json:"partitionId"`
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	ConsumerGroup string          `json:"consumerGroup"`
	Offset        int64           `json:"offset"`
	ErrorMessage  *string         `json:"errorMessage"`
	RetryCount    int             `json:"retryCount"`
	Data          json.RawMessage `json:"data"`
}

// DeadLetters lists a queue's dead letters.
func (b *Broker) DeadLetters(queue string) []DeadLetter {
	b.t.Helper()
	var list struct {
		Messages []DeadLetter `json:"messages"`
	}
	b.MustInto(&list, http.StatusOK, "GET", "/api/v1/dlq?queue="+Seg(queue), nil)
	return list.Messages
}
