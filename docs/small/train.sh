GPUS_PER_NODE=8
NNODES=4
TP=2
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size 4 --sequence-parallel \
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 128 --seq-length 4096 \
  --num-layers 32 --hidden-size 4096 --lr 3e-4 --bf16
