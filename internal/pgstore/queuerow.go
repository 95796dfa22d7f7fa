package pgstore

import (
	"time"

	"github.com/queenmq-go/queenmq/internal/mq"
	"github.com/queenmq-go/queenmq/internal/pgstore/db"
)

// A queue's row to and from its options: plain assignments, kept apart.

func queueInfo(q *db.QueenQueue) *mq.QueueInfo {
	return &mq.QueueInfo{
		Tenant: q.Tenant, Version: q.Version, IDClass: q.IDClass, IDClassBefore: q.IDClassBefore,
		Queue: mq.Queue{
			ID: q.ID, Name: q.Name, CreatedAt: q.CreatedAt,
			Options: mq.Options{
				Namespace: q.Namespace, Task: q.Task, Priority: q.Priority, LeaseTime: q.LeaseTime,
				RetryLimit: q.RetryLimit, RetryDelay: q.RetryDelay, MaxSize: q.MaxSize, TTL: q.Ttl,
				DeadLetterQueue: q.DeadLetterQueue, DLQAfterMaxRetries: q.DlqAfterMaxRetries,
				DelayedProcessing: q.DelayedProcessing, WindowBuffer: q.WindowBuffer,
				RetentionEnabled: q.RetentionEnabled, RetentionSeconds: q.RetentionSeconds,
				CompletedRetentionSeconds: q.CompletedRetentionSeconds, MaxWaitTimeSeconds: q.MaxWaitTimeSeconds,
				MinPopWaitTime: q.MinPopWaitTime, EncryptionEnabled: q.EncryptionEnabled,
				DedupWindowSeconds: q.DedupWindowSeconds, RetentionSinkHold: q.RetentionSinkHold,
				RetentionSinkHoldMaxSeconds: q.RetentionSinkHoldMaxSeconds,
			},
		},
	}
}

func createParams(tenant mq.UUID, name string, o *mq.Options) db.CreateQueueParams {
	return db.CreateQueueParams{
		Tenant: tenant, Name: name, Namespace: o.Namespace, Task: o.Task, Priority: o.Priority,
		LeaseTime: o.LeaseTime, RetryLimit: o.RetryLimit, RetryDelay: o.RetryDelay, MaxSize: o.MaxSize, Ttl: o.TTL,
		DeadLetterQueue: o.DeadLetterQueue, DlqAfterMaxRetries: o.DLQAfterMaxRetries,
		DelayedProcessing: o.DelayedProcessing, WindowBuffer: o.WindowBuffer,
		RetentionEnabled: o.RetentionEnabled, RetentionSeconds: o.RetentionSeconds,
		CompletedRetentionSeconds: o.CompletedRetentionSeconds, MaxWaitTimeSeconds: o.MaxWaitTimeSeconds,
		MinPopWaitTime: o.MinPopWaitTime, EncryptionEnabled: o.EncryptionEnabled,
		DedupWindowSeconds: o.DedupWindowSeconds, RetentionSinkHold: o.RetentionSinkHold,
		RetentionSinkHoldMaxSeconds: o.RetentionSinkHoldMaxSeconds, IDClass: o.IDClass(),
	}
}

func updateParams(q *mq.QueueInfo, until *time.Time) db.UpdateQueueParams {
	o := &q.Options
	return db.UpdateQueueParams{
		ID: q.ID, Namespace: o.Namespace, Task: o.Task, Priority: o.Priority,
		LeaseTime: o.LeaseTime, RetryLimit: o.RetryLimit, RetryDelay: o.RetryDelay, MaxSize: o.MaxSize, Ttl: o.TTL,
		DeadLetterQueue: o.DeadLetterQueue, DlqAfterMaxRetries: o.DLQAfterMaxRetries,
		DelayedProcessing: o.DelayedProcessing, WindowBuffer: o.WindowBuffer,
		RetentionEnabled: o.RetentionEnabled, RetentionSeconds: o.RetentionSeconds,
		CompletedRetentionSeconds: o.CompletedRetentionSeconds, MaxWaitTimeSeconds: o.MaxWaitTimeSeconds,
		MinPopWaitTime: o.MinPopWaitTime, EncryptionEnabled: o.EncryptionEnabled,
		DedupWindowSeconds: o.DedupWindowSeconds, RetentionSinkHold: o.RetentionSinkHold,
		RetentionSinkHoldMaxSeconds: o.RetentionSinkHoldMaxSeconds,
		IDClass:                     q.IDClass, IDClassBefore: q.IDClassBefore, IDClassUntil: until,
	}
}
